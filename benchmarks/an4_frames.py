"""Log-prob on real speech at the shipped defaults: the settings that `unisono bench` times.

    python benchmarks/an4_frames.py FRAMES.npz --learners 2 --seeds 3

trains each strategy on AN4 frames (see docs/prep.md for the keys of the file) and prints, for each,
held-out and training log-prob a frame, held-out accuracy, rounds and wall-clock, as means over the
seeds with their spread, and the loss against solo.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from unisono.config import load
from unisono.data import convert_frames
from unisono.runs.summary import Summary
from unisono.training.train import train

WAYS: dict[str, list[str]] = {
    "solo": ["strategy=solo", "learners=1"],
    "allreduce": ["strategy=allreduce"],
    "averaging": ["strategy=averaging"],
    "averaging-drawn": ["strategy=averaging", "agreement.division=drawn"],
    "block-momentum": ["strategy=averaging", "agreement.outer=block-momentum"],
    "nesterov": ["strategy=averaging", "agreement.outer=nesterov"],
}


def run(prep: Path, out: Path, sets: list[str]) -> Summary:
    """One training."""
    return train(load(None, sets, {"prep": str(prep)}), out)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("frames", type=Path)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        prep = Path(folder) / "prep"
        convert_frames(options.frames, prep)
        solo: list[float] = []
        for way in options.ways.split(","):
            common = [f"epochs={options.epochs}", "validation.examples=0", *options.set]
            runs = []
            for seed in range(options.seeds):
                sets = [f"learners={options.learners}", f"seed={seed}", *common, *WAYS[way]]
                runs.append(run(prep, Path(folder) / f"{way}-{seed}", sets))
            heldout = [r.validation_logprob or 0.0 for r in runs]
            solo = solo or heldout
            losses = [a - b for a, b in zip(solo, heldout, strict=True)]
            accuracy = statistics.mean(r.validation_accuracy or 0.0 for r in runs)
            spread = statistics.stdev(heldout) if len(heldout) > 1 else 0.0
            lines.append(
                f"{way:16} {statistics.mean(heldout):9.4f} {spread:7.4f} "
                f"{statistics.mean(losses):10.4f} "
                f"{statistics.mean(r.train_logprob or 0.0 for r in runs):9.4f} "
                f"{100 * accuracy:8.2f} {statistics.mean(r.rounds for r in runs):7.0f} "
                f"{statistics.mean(r.wall_s for r in runs):8.1f}"
            )
            print(lines[-1], flush=True)
    names = ("held out", "spread", "loss/solo", "train", "right %", "rounds", "wall s")
    print(
        f"\n{options.learners} learners, {options.epochs} epochs, {options.seeds} seeds, AN4 frames"
    )
    print("{:16} {:>9} {:>7} {:>10} {:>9} {:>8} {:>7} {:>8}".format("", *names))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
