"""The process on each host of ``benchmarks/hosts.py``: times ways of training, and trains.

It is told what to do over a socket that it was started with, so that nothing but training is on the
cables.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from hosts_contenders import HOSTS, TIMEOUT_S, Order, Speed
from torch.nn import functional

from unisono.config import load
from unisono.data import FrameSource, Part, Prep
from unisono.fabric.network.tcp_listener import NetworkSettings
from unisono.learner.learner import Learner
from unisono.learner.placement import LaunchedProcess, SingleProcess, at_placement
from unisono.models import build
from unisono.runs.directory import RunDirectory
from unisono.training.builders import make_optimizer, shape_of, strategy_of
from unisono.training.worker import Worker

WARM_UP_STEPS = 5


class Window:
    """Steps that count: from the end of one round to the end of another, some seconds later.

    So a window holds whole rounds, however long they are. Training goes on before and after it,
    until all hosts have theirs.
    """

    def __init__(self, driver: Connection, seconds: float) -> None:
        self._driver = driver
        self._seconds = seconds
        self._steps = 0
        self._begun = self._told = False
        self._rounds = -1
        self._first: tuple[float, int, int, int] | None = None

    def step_done(self, rounds: int, sent: int) -> bool:
        """Counts a step; says whether to go on."""
        self._steps += 1
        if self._steps == WARM_UP_STEPS:
            self._driver.send("warm")
        if self._steps >= WARM_UP_STEPS and (not self._begun or self._told) and self._driver.poll():
            self._driver.recv()
            if self._told:
                return False
            self._begun = True
        if rounds != self._rounds:
            self._rounds = rounds
            self._round_done((time.monotonic(), self._steps, rounds, sent))
        return True

    def _round_done(self, now: tuple[float, int, int, int]) -> None:
        if not self._begun or self._told:
            return
        if self._first is None:
            self._first = now
        elif now[0] - self._first[0] >= self._seconds:
            seconds, *counts = (b - a for a, b in zip(self._first, now, strict=True))
            self._driver.send(Speed(*(count / seconds for count in counts)))
            self._told = True


class Host:
    """One learner."""

    def __init__(self, driver: Connection, number: int, prep: str) -> None:
        self._driver = driver
        self._number = number
        self._prep = prep

    def obey(self, order: Order) -> None:
        """Times, or trains."""
        if order.run:
            with at_placement(self._placement(order)):
                Worker(RunDirectory.open(Path(order.run)), resume=False).run()
            self._driver.send("trained")
            return
        config = load(None, order.sets, {"prep": self._prep})
        prep = Prep.open(Path(self._prep))
        source = FrameSource(prep, Part.TRAIN, context=config.network.context)
        model = build(config.model, seed=0, **shape_of(config, prep))
        optimizer = make_optimizer(config, model, config.start_rate)
        window = Window(self._driver, order.seconds)
        if not config.strategy:
            for step, (x, y) in enumerate(self._minibatches(source, config.minibatch)):
                torch.autograd.backward(functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                if not window.step_done(step, 0):
                    return
        placement = self._placement(order) if order.coordinator else SingleProcess()
        strategy = strategy_of(config)
        with (
            at_placement(placement),
            Learner(model, optimizer, strategy, prefetch=config.prefetch) as learner,
        ):
            minibatches = learner.draw(source, epochs=100_000, batch_size=config.minibatch)
            for step, (x, y) in enumerate(minibatches):
                learner.step(functional.cross_entropy(model(x), y))
                rounds = learner.rounds if order.coordinator else step
                if not window.step_done(rounds, learner.bytes_sent):
                    return

    def _placement(self, order: Order) -> LaunchedProcess:
        network = NetworkSettings.towards(order.coordinator, order.credentials)
        return LaunchedProcess(
            None,
            self._number,
            HOSTS,
            TIMEOUT_S,
            network=network,
            coordinator=order.coordinator,
        )

    def _minibatches(
        self, source: FrameSource, size: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = np.random.default_rng(self._number)
        while True:
            order = generator.permutation(len(source))
            for start in range(0, len(order) - size + 1, size):
                x, y = source.batch(order[start : start + size])
                yield x, y


def main() -> None:
    """Obeys until there is nobody to give orders."""
    descriptor, number, prep = sys.argv[1:]
    torch.set_num_threads(1)
    with Connection(int(descriptor)) as driver:
        host = Host(driver, int(number), prep)
        while (order := driver.recv()) is not None:
            host.obey(order)


if __name__ == "__main__":
    main()
