"""Runs of a comparison as they lie on disk, made by hand."""

from __future__ import annotations

from pathlib import Path

from unisono.config import load
from unisono.errors import Cause
from unisono.report.outcome import output_of
from unisono.runs import Event, Minibatches, RunDirectory, Staleness, Summary, format_event

Scores = tuple[float | None, float]
"""Log-prob of the choosing speakers (None: not finite), and of the reported ones."""


def make_compared(
    path: Path,
    scores: list[Scores],
    *,
    strategy: str = "averaging",
    learners: int = 2,
    seed: int = 0,
    stale: float = 0.0,
    distance: float | None = None,
    start_up: float = 0.0,
    age: float = 0.0,
) -> Path:
    """A finished run with a check an epoch; learner 1 computes half as fast as the others.

    Its learners join after `start_up` seconds; a check is told `age` seconds after its model was
    taken.
    """
    flags = {"strategy.name": strategy, "learners": learners, "seed": seed, "epochs": len(scores)}
    run = RunDirectory.create(path, load(None, [], flags))
    events: list[Event] = [{"event": "joined", "time": 0.0, "learner": n} for n in range(learners)]
    for epoch, (choice, report) in enumerate(scores, start=1):
        for learner in range(learners):
            train = {"event": "train", "time": 1.0 * epoch, "learner": learner, "loss": 3.0 / epoch}
            train |= {"examples": 1000 * epoch, "global_examples": 1000 * epoch * learners}
            train |= {"rate": 1000.0, "data_wait_s": 0.0, "staleness": stale}
            train |= {"round_wait_s": 0.0 if learner == 1 or learners == 1 else 0.5}
            events.append(train)
        check: Event = {"event": "validation", "time": epoch + 0.5, "learner": 0}
        check |= {"global_examples": 1000 * epoch * learners, "logprob": report, "accuracy": 0.5}
        check |= {"choice_logprob": choice, "choice_accuracy": 0.4, "train_logprob": report + 0.5}
        check |= {"report_logprob": report, "report_accuracy": 0.6}
        check |= {"age_s": age, "stalled_s": 0.01}
        events.append(check)
        if distance is not None:
            told = {"event": "round", "time": epoch + 0.6, "learner": 0, "distance": distance}
            events.append(told | {"global_examples": 1000 * epoch * learners})
    for event in events:
        event["time"] += start_up
    run.metrics.write_bytes(b"".join(format_event(event) for event in events))
    updates = Staleness(mean=stale, max=3, histogram={0: 1, 3: 1}) if stale else Staleness()
    run.write_summary(
        Summary(
            strategy=strategy,
            learners=learners,
            optimizer="sgd",
            seed=seed,
            epochs=len(scores),
            examples=1000 * len(scores) * learners,
            wall_s=float(len(scores)),
            examples_per_s=1000.0 * learners,
            data_wait_s=0.0,
            train_logprob=None,
            validation_logprob=None,
            validation_accuracy=None,
            minibatches=Minibatches(),
            rounds=7,
            bytes_sent=12_000_000,
            staleness=updates,
            learners_lost=0,
            learners_joined=0,
            ended="finished",
        )
    )
    return path


def make_unfinished(path: Path, output: str, cause: Cause | None = None) -> Path:
    """A run that ended without a summary, what it printed, and why it failed."""
    run = RunDirectory.create(path, load(None, [], {}))
    output_of(run).write_text(output)
    failed: Event = {"event": "failed", "time": 1.0, "learner": 1}
    if cause is not None:
        run.metrics.write_bytes(format_event({**failed, "cause": cause.value}))
    return path
