"""How a run of a comparison ended, from its directory alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.compared import make_compared, make_unfinished
from unisono.errors import Cause
from unisono.report.outcome import Check, RunOutcome, read_result
from unisono.runs.directory import RunDirectory

NOT_FINITE = """strategy  averaging
unisono: learner 1: 12 steps were not finite, the last ten one after the other: lower the rate
unisono: stopped, because learner-1.0#0 failed
unisono: the run failed: learner 1 failed (exit status 2)
"""
PARAMETERS = """unisono: the parameters of learner 1 are not finite at round 3: lower the rate
"""


def test_the_best_check_is_the_choosing_speakers_best(tmp_path: Path) -> None:
    scores = [(-3.0, -2.9), (-2.0, -2.5), (-2.1, -2.2), (None, -1.0)]
    path = make_compared(tmp_path / "run", scores, seed=7)
    result = read_result(path, 7)
    assert (result.ended, result.seed, result.run) == (RunOutcome.FINISHED, 7, path)
    assert result.best == Check(2.0, -2.0, -2.5, 0.6, -2.0)


def test_a_run_without_a_finite_check_diverged(tmp_path: Path) -> None:
    result = read_result(make_compared(tmp_path / "run", [(None, -1.0)]), 0)
    assert (result.ended, result.best) == (RunOutcome.DIVERGED, None)
    assert "no check was finite" in result.reason


@pytest.mark.parametrize(
    ("output", "cause", "ended", "reason"),
    [
        (NOT_FINITE, Cause.DIVERGED, RunOutcome.DIVERGED, "learner 1: 12 steps were not finite"),
        (PARAMETERS, Cause.DIVERGED, RunOutcome.DIVERGED, "parameters of learner 1 are not finite"),
        (NOT_FINITE, Cause.EXCEPTION, RunOutcome.FAILED, "learner 1: 12 steps were not finite"),
        (NOT_FINITE, None, RunOutcome.FAILED, "learner 1: 12 steps were not finite"),
        ("unisono: No space left on device\n", None, RunOutcome.FAILED, "No space left on device"),
        ("Traceback\n  File x\nValueError: no\n", None, RunOutcome.FAILED, "ValueError: no"),
        ("", None, RunOutcome.FAILED, "not run to its end"),
    ],
)
def test_a_run_without_a_summary(
    tmp_path: Path, output: str, cause: Cause | None, ended: RunOutcome, reason: str
) -> None:
    """Its cause decides, not what it printed."""
    result = read_result(make_unfinished(tmp_path / "run", output, cause), 0)
    assert (result.ended, result.best) == (ended, None)
    assert reason in result.reason
    assert "\n" not in result.reason


def test_a_run_that_ended_early_is_to_be_done_again(tmp_path: Path) -> None:
    run = RunDirectory(make_compared(tmp_path / "run", [(-3.0, -2.9)]))
    summary = run.read_summary()
    assert summary is not None
    run.write_summary(summary.model_copy(update={"ended": "early"}))
    result = read_result(run.path, 0)
    assert (result.ended, result.reason) == (RunOutcome.FAILED, "it ended early")


def test_a_run_that_was_never_begun(tmp_path: Path) -> None:
    assert read_result(tmp_path / "none", 0).ended is RunOutcome.FAILED
