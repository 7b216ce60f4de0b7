"""What one run of a comparison came to: its best check, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from unisono.errors import Cause
from unisono.report.history import History, number
from unisono.runs.directory import RunDirectory


class RunOutcome(str, Enum):
    """How a run of a comparison ended."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    """Its steps, or all its checks, were not finite: a result, which would come again."""
    FAILED = "failed"
    """It ended for another reason, or was never begun: to be done again."""


@dataclass(frozen=True)
class Check:
    """A check of the consensus. Log-probs are means a frame, in nats.

    Attributes:
        epoch: when, in passes over the data.
        choice_logprob: on the speakers that settings are chosen by.
        logprob: on the speakers that are reported.
        accuracy: on the speakers that are reported, 0 to 1.
        train_logprob: on training frames, at the end of the epoch in which the check was made.
    """

    epoch: float
    choice_logprob: float
    logprob: float
    accuracy: float
    train_logprob: float


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        seed: its seed.
        run: its directory.
        ended: how it ended.
        reason: why it did not finish, in a line.
        best: of its checks, the one that is best on the speakers that settings are chosen by.
    """

    seed: int
    run: Path
    ended: RunOutcome
    reason: str = ""
    best: Check | None = None


def output_of(run: RunDirectory) -> Path:
    """Where everything is kept that a run of a comparison printed."""
    return run.logs / "output.txt"


def read_result(path: Path, seed: int) -> Result:
    """Finds out how a run ended, from its directory alone."""
    run = RunDirectory(path)
    summary = run.read_summary() if run.config.is_file() else None
    if summary is None or summary.ended != RunOutcome.FINISHED.value:
        reason = _reason(run) if summary is None else f"it ended {summary.ended}"
        return Result(seed, path, _ended(run), reason)
    checks = _checks(History.read(path, ""))
    if not checks:
        return Result(seed, path, RunOutcome.DIVERGED, "no check was finite")
    best = max(checks, key=lambda check: check.choice_logprob)
    return Result(seed, path, RunOutcome.FINISHED, best=best)


def _checks(history: History) -> list[Check]:
    """The checks that are finite, in order. The last of a finished run is at its end."""
    events = history.named("validation")
    whole = max((number(event, "global_examples") or 0.0 for event in events), default=0.0)
    keys = ("choice_logprob", "report_logprob", "report_accuracy")
    checks = []
    train: float | None = None
    for event in reversed(events):
        seen = number(event, "global_examples")
        told = number(event, "train_logprob")
        train = train if told is None else told
        values = [value for value in (number(event, key) for key in keys) if value is not None]
        if seen is not None and train is not None and len(values) == len(keys):
            choice, report, accuracy = values
            epoch = history.config.epochs * seen / whole
            checks.append(Check(epoch, choice, report, accuracy, train))
    return checks[::-1]


def _ended(run: RunDirectory) -> RunOutcome:
    """Why a run did not finish, by the cause in its metrics."""
    events = run.read_metrics() if run.metrics.is_file() else []
    causes = [event.get("cause") for event in events if event["event"] == "failed"]
    return RunOutcome.DIVERGED if causes[-1:] == [Cause.DIVERGED.value] else RunOutcome.FAILED


def _reason(run: RunDirectory) -> str:
    """The first message for the user; of a traceback, the last line."""
    try:
        text = output_of(run).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line.removeprefix("unisono: ") for line in lines if line.startswith("unisono: ")]
    return said[0] if said else lines[-1] if lines else "it was not run to its end"
