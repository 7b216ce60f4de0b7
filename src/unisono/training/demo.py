"""``unisono demo``: speech made on the spot, aligned, trained on by two learners, recognised."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

from unisono.config import load
from unisono.data import Part
from unisono.errors import UserError
from unisono.report.report import write_report
from unisono.runs.directory import RunDirectory
from unisono.speech.decoding.scoring import Score
from unisono.speech.prepare import PrepareOptions, prepare
from unisono.speech.synthesis.synthesize import SynthesisOptions, synthesize
from unisono.training.decode import DecodeOptions, decode
from unisono.training.train import train

Say = Callable[[str], None]

_HOURS, _TEST_HOURS = 0.45, 0.12
_SETTINGS = ("epochs=2", "validation.every=40000", "strategy.every=4096")
_WIDTH = 48
_ERRORS_SHOWN = 3


def demo(out: Path, program: str, say: Say, tell: Say) -> list[str]:
    """Runs the demo.

    Args:
        out: The folder to make.
        program: What a user types to run ``unisono``.
        say: Takes a line a stage.
        tell: Takes what happens within the stages.

    Returns:
        The lines that sum it up.

    Raises:
        UserError: `out` exists, or a package is missing.
    """
    if os.path.lexists(out):
        raise UserError(f"{out} exists already; name another --out, or take it away")
    data, prep, run = (out / name for name in ("data", "prep", "run"))
    words = run / "test"
    cores = os.cpu_count() or 1
    say(f"1/4  speech: {_HOURS} h of digits and commands by espeak-ng, {_TEST_HOURS} h to test")
    synthesize(data, SynthesisOptions(hours=_HOURS, test_hours=_TEST_HOURS, processes=cores), tell)
    with (out / "log.txt").open("w", encoding="utf-8", buffering=1) as log:

        def note(line: str) -> None:
            log.write(line + "\n")
            tell(line)

        say(f"2/4  preparing: features, and an alignment from nothing ({log.name} tells more)")
        how = PrepareOptions(processes=cores)
        made = prepare(data / "train", data / "lexicon.txt", prep, how, note)
        frames = made.frames_of(Part.TRAIN)
        size = f"{frames:,} frames, {made.header.states} states"
        say(f"3/4  training on {size}: 2 learners, averaging, natural gradient")
        flags = {"prep": str(prep.resolve()), "learners": "2", "optimizer": "ng-sgd"}
        summary = train(load(None, _SETTINGS, flags), run)
        say("4/4  recognising voices that were never heard, tuned on others held out of training")
        score = decode(run, data / "test", words, DecodeOptions(processes=cores), note)
    assert score is not None
    write_report([run], RunDirectory(run).report)
    return [
        "",
        "held-out log-prob a frame, over the examples trained on",
        *_curve(RunDirectory(run)),
        "",
        *summary.lines(),
        "",
        *_heard(score),
        "",
        f"report: {run / 'report.html'}; every error: {words / 'errors.txt'}",
        "try next:",
        *_next(out, program),
    ]


def _heard(score: Score) -> list[str]:
    """The figures, and the first errors."""
    shown = [line for block in score.aligned[:_ERRORS_SHOWN] for line in block.splitlines()]
    return [*score.lines()[:2], *(line for line in shown if line)]


def _next(out: Path, program: str) -> list[str]:
    run, other = str(out / "run"), out / "gossip"
    way = ["--learners", "2", "--strategy", "gossip-random"]
    commands = [
        ["train", str(out / "prep"), "--out", str(other), *way],
        ["decode", str(other), str(out / "data" / "test"), "--out", str(other / "test")],
        ["report", run, str(other)],
    ]
    return [f"  {program} {shlex.join(command)}" for command in commands]


def _curve(run: RunDirectory) -> list[str]:
    """The curve as bars, for a terminal."""
    points = sorted(
        (e["global_examples"], e["logprob"])
        for e in run.read_metrics()
        if e["event"] == "validation"
    )
    low = min(value for _, value in points)
    high = max(value for _, value in points)
    span = max(high - low, 1e-9)
    return [
        f"{examples:9d} {value:8.3f} " + "#" * (1 + round((_WIDTH - 1) * (value - low) / span))
        for examples, value in points
    ]
