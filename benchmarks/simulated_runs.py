"""Time to target of simulated runs, whole or not, beside a solo run.

    python benchmarks/simulated_runs.py SOLO RUN...

Runs of `unisono simulate`, each the directory of a strategy and seed below its --out. A run that
was stopped counts as far as it went: `trained` says how far.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from unisono.report.comparison import align
from unisono.report.time_to_target import Curve, read_curve
from unisono.runs.directory import RunDirectory

MARGINS = (0.02, 0.05)


def cells_of(path: Path, curve: Curve, solo: Curve) -> list[str]:
    """A row: times to the targets, the last and the best log-prob, how far it went."""
    cells = []
    for margin in MARGINS:
        target = solo.final - margin
        mine, theirs = curve.reaches(target), solo.reaches(target)
        assert theirs is not None
        cells += ["-", "-"] if mine is None else [f"{mine:.1f} s", f"{theirs / mine:.1f}"]
    events = RunDirectory(path).read_metrics()
    progress = max(event["progress"] for event in events if event["event"] == "validation")
    return [*cells, f"{curve.final:.4f}", f"{curve.best:.4f}", f"{progress:.0%}"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("solo", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    solo = read_curve(options.solo, 0, "logprob")
    heads = ["run"]
    for margin in MARGINS:
        heads += [f"to {solo.final - margin:.3f}", "speed-up"]
    table = [[*heads, "last", "best", "trained"]]
    for path in (options.solo, *options.runs):
        name = path.parent.name if path.parent != options.solo.parent else path.name
        table.append([name, *cells_of(path, read_curve(path, 0, "logprob"), solo)])
    print("\n".join(align(table)))


if __name__ == "__main__":
    main()
