"""Learning rates that are too high: does every run end with a usable model, and what did it do?

    python benchmarks/high_rates.py PREP --out DIR [--learners 4] [--set key=value]...

trains each strategy at its default learning rate and at 2 to 128 times that, and prints the final
held-out log-prob of each run beside that of the default rate, and what was done about divergence.
What is done in DIR stays done.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from unisono.config import load
from unisono.errors import UserError
from unisono.runs.directory import RunDirectory
from unisono.training.train import train

MULTIPLES = (1, 2, 4, 8, 32, 128)
"""Of the default rate. Steps are bounded, so that a few times the rate seldom diverges."""
CASES = [
    ("averaging", "ng-sgd"),
    ("solo", "sgd"),
    ("solo", "ng-sgd"),
    ("solo", "adamw"),
    ("gossip-random", "ng-sgd"),
    ("allreduce", "ng-sgd"),
    ("server", "ng-sgd"),
]
"""Strategy and optimizer."""


def outcome(run: RunDirectory) -> tuple[float | None, str]:
    """The final held-out log-prob, and what was done on the way."""
    summary = run.read_summary()
    events = run.read_metrics()
    steps = [
        f"back from {100 * event['progress']:.0f}% to {100 * event['to']:.0f}% at rate x "
        f"{event['rate_factor']:g}"
        for event in events
        if event["event"] == "diverged"
    ]
    alone = sum(event.get("cause") == "diverged" for event in events if event["event"] == "lost")
    if alone and summary is not None and summary.learners_lost:
        steps.append(f"{summary.learners_lost} learners replaced")
    if summary is None:
        return None, "; ".join([*steps, "ended: diverged again"])
    return summary.validation_logprob, "; ".join(steps) or "nothing"


def main() -> None:
    """Trains what is not done yet, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prep", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    options = parser.parse_args()
    rows = [
        f"{'strategy':14}{'optimizer':11}{'rate':>7}{'log-prob':>10}{'default':>10}  divergence"
    ]
    for strategy, optimizer in CASES:
        default: float | None = None
        for multiple in MULTIPLES:
            path = options.out / f"{strategy}-{optimizer}-{multiple}"
            keys = [f"strategy.name={strategy}", f"optimizer={optimizer}", *options.set]
            learners = 1 if strategy == "solo" else options.learners
            flags = {"prep": str(options.prep.resolve()), "learners": str(learners)}
            start = load(None, keys, flags).start_rate * multiple
            config = load(None, [*keys, f"rate.start={start!r}"], flags)
            run = RunDirectory(path)
            if not run.summary.is_file():
                try:
                    train(config, path, resume=path.exists())
                except UserError as error:
                    print(f"{path.name}: {error}", flush=True)
            logprob, done = outcome(run)
            default = logprob if multiple == 1 else default
            cells = ["none" if each is None else f"{each:.4f}" for each in (logprob, default)]
            rows.append(
                f"{strategy:14}{optimizer:11}{start:7g}{cells[0]:>10}{cells[1]:>10}  {done}"
            )
            (options.out / "table.txt").write_text("\n".join(rows) + "\n")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
