"""``unisono demo``: frames made on the spot, two learners, a curve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unisono.config import load
from unisono.data import synthesise
from unisono.events import UserError
from unisono.runs.directory import RunDirectory
from unisono.training.train import train

_WIDTH = 48


def demo(out: Path, say: Callable[[str], None]) -> list[str]:
    """Runs the demo; returns the lines that sum it up."""
    if out.exists():
        raise UserError(f"{out} exists already; name another --out, or take it away")
    say("1/3  making frames: 40 speakers, 120 states")
    prep = out / "prep"
    out.mkdir(parents=True)
    synthesise(
        prep,
        speakers=40,
        utterances_per_speaker=12,
        frames_per_utterance=250,
        states=120,
        dimension=40,
        seed=0,
        noise=1.5,
    )
    say("2/3  training: 2 learners, averaging")
    sets = ["validation.every=20000", "epochs=4", "agreement.every=2048"]
    config = load(None, sets, {"prep": str(prep.resolve()), "learners": "2"})
    run = RunDirectory(out / "run")
    summary = train(config, run.path)
    say("3/3  done")
    return [
        "",
        "held-out log-prob a frame against examples",
        *_curve(run),
        "",
        *summary.lines(),
        "",
        f"report: {run.report}",
        "try next:",
        f"  unisono train {prep} --learners 2 --strategy allreduce --out {out / 'allreduce'}",
        f"  unisono report {run.path} {out / 'allreduce'}",
        "  unisono bench --learners 2",
    ]


def _curve(run: RunDirectory) -> list[str]:
    """The curve as bars, for a terminal."""
    points = [
        (e["global_examples"], e["logprob"])
        for e in run.read_metrics()
        if e["event"] == "validation"
    ]
    if not points:
        return []
    low = min(value for _, value in points)
    high = max(value for _, value in points)
    span = max(high - low, 1e-9)
    return [
        f"{examples:9d} {value:8.3f} " + "#" * (1 + round((_WIDTH - 1) * (value - low) / span))
        for examples, value in points
    ]
