"""``unisono simulate --calibrate RUN``: what minibatches and rounds cost in a real run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.config import Config, OptimizerChoice
from unisono.errors import UserError
from unisono.report.history import History
from unisono.simulation.hosts import MBIT, Link
from unisono.strategies.base import Sharding
from unisono.training.builders import examples_in, strategy_of

LATENCY_MS = 0.05
"""Of a message inside a machine; a round's time does not tell it from the bytes' own."""
ALIKE = ("model", "network", "minibatch")
"""Keys, and tables, that a minibatch's cost depends on."""


@dataclass(frozen=True)
class Costs:
    """What real runs cost.

    Attributes:
        minibatch_ms: of a learner alone on its host, by optimizer.
        contention: of the machine; 0 where no optimizer has runs of different numbers of learners.
        shared_memory: None where no run tells it.
    """

    minibatch_ms: dict[OptimizerChoice, float]
    contention: float
    shared_memory: Link | None


def calibrate(runs: Sequence[Path], config: Config) -> Costs:
    """The costs of finished runs on one machine.

    With s the seconds of a minibatch in a run of N learners and c those of one alone,

        s = c (1 + contention log2 N),

    which two runs with one optimizer and different N solve for both.

    Args:
        runs: their directories.
        config: of what is to be simulated.

    Raises:
        UserError: a path is not a run, too short a run, or one of another model or minibatch.
    """
    histories = [History.read(path, str(path)) for path in runs]
    for history in histories:
        _check_alike(history, config)
    seconds = [
        (h.config.chosen_optimizer, math.log2(h.config.first_learners), _minibatch_seconds(h))
        for h in histories
    ]
    contention = _contention(seconds)
    alone: dict[OptimizerChoice, list[float]] = {}
    for optimizer, doublings, cost in seconds:
        alone.setdefault(optimizer, []).append(cost / (1 + contention * doublings))
    costs = {name: round(1000 * statistics.fmean(found), 4) for name, found in alone.items()}
    memory = [link for history in histories for link in _shared_memory(history)]
    return Costs(costs, round(contention, 4), memory[-1] if memory else None)


def _check_alike(history: History, config: Config) -> None:
    for key in ALIKE:
        if getattr(history.config, key) != getattr(config, key):
            raise UserError(
                f"--calibrate {history.name} has another {key} than what is to be simulated: "
                "choose another run, or --set the same"
            )


def _contention(seconds: Sequence[tuple[OptimizerChoice, float, float]]) -> float:
    """The mean over optimizers that have runs of different numbers of learners."""
    found = []
    for name in OptimizerChoice:
        points = [(x, y) for optimizer, x, y in seconds if optimizer is name]
        if len({x for x, _ in points}) > 1:
            line = statistics.linear_regression(*zip(*points, strict=True))
            found.append(max(0.0, line.slope / line.intercept))
    return statistics.fmean(found) if found else 0.0


def _minibatch_seconds(history: History) -> float:
    """The median over learners of the time in which they did not wait, by minibatch."""
    speeds = [track.speed for track in history.tracks() if track.speed > 0]
    if not speeds:
        raise UserError(f"--calibrate {history.name}: it is too short to tell what it cost")
    return examples_in(history.config, history.config.minibatch) / statistics.median(speeds)


def _shared_memory(history: History) -> list[Link]:
    """From rounds that everybody waits for, on one machine; none where there are no such rounds.

    The shortest time that any of N members spent in a round is the round's own: what the others
    spent beyond it is waiting. In it each sends N - 1 slices of V / N bytes and as many slices of
    the mean, one after the other: 2 latency + 2 (N - 1) / N V / bandwidth.
    """
    config = history.config
    plan = strategy_of(config).round_plan(config.minibatch)
    if plan.sharding is not Sharding.STATIC or config.cluster:
        return []
    rounds: dict[int, list[dict[str, float]]] = {}
    for event in history.named("round"):
        rounds.setdefault(event["round"], []).append(event)
    members = config.first_learners
    whole = [events for events in rounds.values() if len(events) == members > 1]
    if not whole:
        return []
    seconds = statistics.median(min(event["time_s"] for event in events) for events in whole)
    nbytes = 2 * (members - 1) / members * whole[0][0]["bytes"]
    bandwidth = nbytes / max(seconds - 2 * LATENCY_MS / 1000, 1e-6)
    return [Link(bandwidth_mbit=round(bandwidth / MBIT, 1), latency_ms=LATENCY_MS)]
