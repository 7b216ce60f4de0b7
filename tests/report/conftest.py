from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from unisono.config import load
from unisono.runs import Event, Minibatches, RunDirectory, Staleness, Summary, format_event

MakeRun = Callable[..., RunDirectory]


def make_events(learners: int, seconds: int, *, slow: int | None, seed: int) -> list[Event]:
    """Events such as a run of `averaging` writes: one learner computes slower, the others wait."""
    chance = random.Random(seed)
    events: list[Event] = [
        {
            "event": "start",
            "time": 0.0,
            "learner": None,
            "strategy": "averaging",
            "learners": learners,
            "lines": ["shares parameters", "waits: everybody, each round"],
        }
    ]
    if seconds:
        events += [{"event": "joined", "time": 0.0, "learner": n} for n in range(learners)]
    trained = [0] * learners
    for second in range(1, seconds + 1):
        for learner in range(learners):
            speed = 400 if learner == slow else 1000
            step = round(speed * chance.uniform(0.9, 1.1))
            trained[learner] += step
            everybody = sum(trained)
            loss = 1.9 + 4.5 * math.exp(-everybody / (150.0 * learners * seconds))
            events.append(
                {
                    "event": "train",
                    "time": second + learner / 100,
                    "learner": learner,
                    "examples": trained[learner],
                    "global_examples": everybody,
                    "loss": loss + chance.gauss(0, 0.08),
                    "rate": float(step),
                    "data_wait_s": chance.uniform(0, 0.05),
                    "round_wait_s": 0.0 if learner == slow else chance.uniform(0.1, 0.3),
                    "staleness": 0,
                    "learning_rate": 0.05,
                }
            )
        if second % max(1, seconds // 8) == 0:
            events.append(
                {
                    "event": "validation",
                    "time": second + 0.5,
                    "learner": 0,
                    "global_examples": sum(trained),
                    "logprob": -(loss + 0.15),
                    "train_logprob": -loss,
                    "accuracy": 0.62 - 0.08 * loss,
                }
            )
            events.append(
                {
                    "event": "round",
                    "time": second + 0.5,
                    "learner": 0,
                    "round": second,
                    "time_s": 0.01,
                    "bytes": 1_600_000,
                    "members": learners,
                    "weight": 1.0,
                    "distance": 0.1,
                }
            )
    return events


def make_summary(learners: int, events: list[Event]) -> Summary:
    last = [event for event in events if event["event"] == "validation"][-1]
    examples = last["global_examples"]
    wall = events[-1]["time"]
    return Summary(
        strategy="averaging",
        learners=learners,
        optimizer="sgd",
        seed=0,
        epochs=3,
        examples=examples,
        wall_s=wall,
        examples_per_s=examples / wall,
        data_wait_s=1.25,
        train_logprob=last["train_logprob"],
        validation_logprob=last["logprob"],
        validation_accuracy=last["accuracy"],
        minibatches=Minibatches(leased=100, committed=98, returned=2, redone=1),
        rounds=8,
        bytes_sent=12_800_000,
        staleness=Staleness(mean=0.5, max=2, histogram={0: 60, 1: 30, 2: 10}),
        learners_lost=1,
        learners_joined=0,
        ended="finished",
    )


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """A factory of run directories that look like finished or unfinished runs."""

    def make(
        name: str = "run",
        *,
        learners: int = 2,
        seconds: int = 16,
        slow: int | None = 1,
        extra: list[Event] | None = None,
        finished: bool = True,
        seed: int = 0,
        root: Path = tmp_path,
    ) -> RunDirectory:
        config = load(None, [], {"learners": learners, "strategy.name": "averaging"})
        run = RunDirectory.create(root / name, config)
        events = make_events(learners, seconds, slow=slow, seed=seed) + (extra or [])
        run.metrics.write_bytes(b"".join(format_event(event) for event in events))
        if finished:
            run.write_summary(make_summary(learners, events))
        return run

    return make
