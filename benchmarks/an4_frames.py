"""Log-prob on real speech at the shipped defaults: the settings that `unisono bench` times.

    python benchmarks/an4_frames.py FRAMES.npz --learners 2 --seeds 3 [--jobs 4]

trains each strategy on AN4 frames (see docs/reference/prep.md) and prints, for each,
held-out and training log-prob a frame, held-out accuracy, rounds, staleness and wall-clock, as
means over the seeds, and the loss against solo with the same seed and its
interval (90%, Student's t). ``solo-set`` gives solo a learning rate of its own, so that each is
compared at its best. With ``jobs`` several trainings run at a time, and wall-clock means little.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from unisono.config import load
from unisono.data import convert_frames
from unisono.errors import UserError
from unisono.report.statistics import estimate
from unisono.runs.summary import Summary
from unisono.training.train import train

CONTENDERS: dict[str, list[str]] = {
    "solo": ["strategy.name=solo", "learners=1"],
    "allreduce": ["strategy.name=allreduce"],
    "averaging-static": ["strategy.name=averaging", "strategy.sharding=static"],
    "averaging": ["strategy.name=averaging"],
    "block-momentum": ["strategy.name=averaging", "strategy.outer=block-momentum"],
    "nesterov": ["strategy.name=averaging", "strategy.outer=nesterov"],
    "server": ["strategy.name=server"],
    "server-gradient": ["strategy.name=server", "strategy.push=gradient"],
    "averaged-server": ["strategy.name=averaged-server"],
    "gossip-fixed": ["strategy.name=gossip-fixed"],
    "gossip-random": ["strategy.name=gossip-random"],
    "adpsgd": ["strategy.name=adpsgd"],
    "delay-by-one": ["strategy.name=delay-by-one"],
}


def run(job: tuple[Path, Path, list[str]]) -> Summary | None:
    """One training; None if it did not come to an end."""
    prep, out, sets = job
    try:
        return train(load(None, sets, {"prep": str(prep)}), out)
    except UserError as error:
        print(f"{out.name}: {error}", flush=True)
        return None


def line(way: str, pairs: list[tuple[Summary | None, Summary | None]]) -> str:
    """A row of the table, from the runs that came to an end."""
    both = [(s, r) for s, r in pairs if s is not None and r is not None]
    if not both:
        return f"{way:16} did not come to an end"
    ours = [r for _, r in both]
    heldout = [r.validation_logprob or 0.0 for r in ours]
    losses = [(s.validation_logprob or 0.0) - h for (s, _), h in zip(both, heldout, strict=True)]
    told = estimate(losses)
    interval = "" if told.low is None else f"{told.low:.3f}..{told.high:.3f}"
    return (
        f"{way:16} {statistics.mean(heldout):9.4f} {told.mean:10.4f} {interval:>14} "
        f"{statistics.mean(r.train_logprob or 0.0 for r in ours):9.4f} "
        f"{100 * statistics.mean(r.validation_accuracy or 0.0 for r in ours):8.2f} "
        f"{statistics.mean(r.rounds for r in ours):7.0f} "
        f"{statistics.mean(r.staleness.mean for r in ours):9.2f} "
        f"{statistics.mean(r.wall_s for r in ours):8.1f} {len(both):5}"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("frames", type=Path)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ways", default=",".join(CONTENDERS))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    parser.add_argument("--solo-set", action="append", default=[], help="any key, for solo alone")
    options = parser.parse_args()
    contenders, seeds = options.contenders.split(","), range(options.seeds)
    common = [f"epochs={options.epochs}", "validation.examples=0", *options.set]
    with tempfile.TemporaryDirectory() as folder:
        prep = Path(folder) / "prep"
        convert_frames(options.frames, prep)
        jobs = []
        for way in contenders:
            for seed in seeds:
                sets = [f"learners={options.learners}", f"seed={seed}", *common, *CONTENDERS[way]]
                sets += options.solo_set if way == "solo" else []
                jobs.append((prep, Path(folder) / f"{way}-{seed}", sets))
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            summaries = list(pool.map(run, jobs))
    runs = {
        way: summaries[i * len(seeds) : (i + 1) * len(seeds)] for i, way in enumerate(contenders)
    }
    lines = [
        line(way, [(s, r) for s, r in zip(runs["solo"], runs[way], strict=True)])
        for way in contenders
    ]
    names = (
        "held out",
        "loss/solo",
        "interval",
        "train",
        "right %",
        "rounds",
        "staleness",
        "wall s",
    )
    print(
        f"\n{options.learners} learners, {options.epochs} epochs, {options.seeds} seeds, AN4 frames"
    )
    head = "{:16} {:>9} {:>10} {:>14} {:>9} {:>8} {:>7} {:>9} {:>8} {:>5}"
    print(head.format("", *names, "seeds"))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
