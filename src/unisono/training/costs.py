"""What a minibatch and a message cost on this machine, for clusters of machines like it."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from unisono.config import Config
from unisono.data import Part
from unisono.errors import UserError
from unisono.fabric import Member, TensorVector, TimedOut, View, learner
from unisono.fabric.local.background import cpu_time, now
from unisono.fabric.local.host import Host
from unisono.models import build
from unisono.pool.order import Order
from unisono.simulation.hosts import MBIT, Link
from unisono.training.builders import examples_in, make_optimizer, open_data, shape_of, source_of
from unisono.training.objective import objective_of
from unisono.training.rates import make_schedule

MINIBATCHES = 40
"""Timed, after some that are not."""
WARM_UP = 8
ROUND_TRIPS = 20
VECTOR_BYTES = 4 << 20
LONGEST_ROUND_TRIP_S = 30.0


def minibatch_seconds(config: Config) -> float:
    """Seconds of one core for a minibatch: data, forward, backward and the optimizer's step.

    Time of this thread on a core, so that other processes on this machine do not count. Means over
    the period in which ng-sgd updates its estimates once, and the median of these.
    """
    torch.set_num_threads(1)
    prep = open_data(config)
    model = build(config.model, seed=config.seed, **shape_of(config, prep))
    source = source_of(config, prep, Part.TRAIN, model, None)
    objective = objective_of(config)
    optimizer = make_optimizer(config, model, make_schedule(config).rate(0.0))
    size = min(examples_in(config, config.minibatch), len(source))
    block = config.natural_gradient.update_period
    order = Order(len(source), seed=config.seed)
    room = max(1, len(source) - size)
    times = []
    for step in range(WARM_UP + MINIBATCHES):
        began = cpu_time()
        start = step * size % room
        x, y = source.batch(order.indices(0, start, start + size))
        loss = objective.loss(model, x, y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        times.append(cpu_time() - began)
    blocks = [times[i : i + block] for i in range(WARM_UP, len(times) - block + 1, block)]
    return statistics.median(statistics.fmean(each) for each in blocks)


def message_cost() -> Link:
    """Of messages between two processes of this machine: sockets, and shared memory for vectors.

    Raises:
        UserError: messages do not arrive.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="unisono-"))
        hosts = [Host(Path(folder), f"{n}.sock") for n in range(2)]
        for host in hosts:
            stack.callback(host.close)
        first, second = (host.node(learner(n)) for n, host in enumerate(hosts))
        members = tuple(Member(learner(n), host.endpoint) for n, host in enumerate(hosts))
        for node in (first, second):
            node.set_members(View(1, members))

        def answer() -> None:
            while True:
                message = second.receive("there")
                second.send(learner(0), "back", message.body, message.vector)
                message.release()

        def round_trip(vector: TensorVector | None) -> Callable[[], None]:
            def go() -> None:
                first.send(learner(1), "there", {}, vector)
                first.receive("back", timeout=LONGEST_ROUND_TRIP_S).release()

            return go

        second.spawn("answer", answer)
        try:
            short = _median(round_trip(None)) / 2
            long = _median(round_trip(TensorVector.zeros(VECTOR_BYTES // 4))) / 2
        except TimedOut:
            raise UserError(
                "a message on this machine took over "
                f"{LONGEST_ROUND_TRIP_S:g} s: give its cost as [shared_memory] in --hosts"
            ) from None
    bandwidth = VECTOR_BYTES / max(long - short, 1e-6)
    return Link(bandwidth_mbit=round(bandwidth / MBIT, 1), latency_ms=round(1000 * short, 4))


def _median(action: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUND_TRIPS):
        began = now()
        action()
        times.append(now() - began)
    return statistics.median(times)
