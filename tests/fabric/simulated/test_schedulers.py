"""Schedules: every order is walked once, and a seed replays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import pytest

from unisono.fabric import CREDIT, Address, TensorVector, learner
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import (
    ExhaustiveScheduler,
    Scheduler,
    SeededScheduler,
    TimedScheduler,
)

A, B, C, D, E = (learner(number) for number in range(5))
Play = Callable[[SimulatedNode], None]
Trace = list[tuple[Address, int]]


def run(scheduler: Scheduler, plays: Mapping[Address, Play]) -> Kernel:
    kernel = Kernel(scheduler=scheduler, network=SimulatedNetwork(latency=0.01))
    nodes = {address: SimulatedNode(kernel, address) for address in plays}
    for address, play in plays.items():
        kernel.main(nodes[address], lambda play=play, node=nodes[address]: play(node))  # type: ignore[misc]
    kernel.run()
    return kernel


def sender(count: int, *to: Address) -> Play:
    def play(node: SimulatedNode) -> None:
        for n in range(count):
            for receiver in to:
                node.send(receiver, "x", {"n": n})

    return play


def listener(count: int, trace: Trace) -> Play:
    def play(node: SimulatedNode) -> None:
        for _ in range(count):
            message = node.receive("x")
            trace.append((message.sender, message.body["n"]))

    return play


def walk(make: Callable[[], tuple[Mapping[Address, Play], list[Trace]]]) -> list[tuple[Trace, ...]]:
    """What the receivers saw in each order; every order must be walked."""
    seen: list[tuple[Trace, ...]] = []

    def once(scheduler: ExhaustiveScheduler) -> None:
        plays, traces = make()
        run(scheduler, plays)
        seen.append(tuple(traces))

    scheduler = ExhaustiveScheduler()
    assert scheduler.walk(once, 10_000)
    assert scheduler.orders == len(seen)
    return seen


def interleavings(count: int, *senders: Address) -> list[Trace]:
    """All orders in which the messages of some senders can come, by brute force."""
    ranks = [address for address in senders for _ in range(count)]
    orders = []
    for order in sorted(set(itertools.permutations(ranks))):
        numbers = {address: itertools.count() for address in senders}
        orders.append([(address, next(numbers[address])) for address in order])
    return orders


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_two_senders_to_one_receiver_come_in_every_order_once(count: int) -> None:
    def make() -> tuple[Mapping[Address, Play], list[Trace]]:
        trace: Trace = []
        plays = {A: sender(count, C), B: sender(count, C), C: listener(2 * count, trace)}
        return plays, [trace]

    seen = walk(make)
    assert len(seen) == math.comb(2 * count, count)
    assert sorted(trace for (trace,) in seen) == interleavings(count, A, B)


def test_senders_to_different_receivers_have_one_order() -> None:
    def make() -> tuple[Mapping[Address, Play], list[Trace]]:
        traces: list[Trace] = [[], []]
        plays = {A: sender(3, C), B: sender(3, D)}
        return {**plays, C: listener(3, traces[0]), D: listener(3, traces[1])}, traces

    assert len(walk(make)) == 1


def test_two_receivers_see_every_pair_of_orders_once() -> None:
    def make() -> tuple[Mapping[Address, Play], list[Trace]]:
        traces: list[Trace] = [[], []]
        plays = {A: sender(2, C, D), B: sender(2, C, D)}
        return {**plays, C: listener(4, traces[0]), D: listener(4, traces[1])}, traces

    seen = walk(make)
    each = interleavings(2, A, B)
    assert sorted(seen) == sorted((c, d) for c in each for d in each)


def test_what_follows_from_a_delivery_is_ordered_by_it_too() -> None:
    """A -> B -> C beside D -> C: the answer comes before or after, never before its cause."""

    def make() -> tuple[Mapping[Address, Play], list[Trace]]:
        trace: Trace = []

        def forward(node: SimulatedNode) -> None:
            node.send(C, "x", node.receive("x").body)

        plays = {A: sender(1, B), B: forward, D: sender(1, C), C: listener(2, trace)}
        return plays, [trace]

    assert sorted(trace for (trace,) in walk(make)) == sorted([[(B, 0), (D, 0)], [(D, 0), (B, 0)]])


def test_credit_that_comes_back_is_an_effect_on_the_sender() -> None:
    """Two activities of A wait for credit of B and of C; who gets it first speaks first to D."""
    seen: set[tuple[str, ...]] = set()

    def once(scheduler: ExhaustiveScheduler) -> None:
        heard: list[str] = []

        def speak(node: SimulatedNode, to: Address) -> None:
            for n in range(CREDIT + 1):
                node.send(to, "x", {"n": n})
            node.send(D, "x", {"who": str(to)})

        def begin(node: SimulatedNode) -> None:
            for to in (B, C):
                node.spawn("speak", lambda to=to: speak(node, to))  # type: ignore[misc]

        def hear(node: SimulatedNode) -> None:
            heard.extend(node.receive("x").body["who"] for _ in range(2))

        drain = listener(CREDIT + 1, [])
        run(scheduler, {A: begin, B: drain, C: drain, D: hear})
        seen.add(tuple(heard))

    scheduler = ExhaustiveScheduler()
    scheduler.walk(once, 3000)
    assert seen == {(str(B), str(C)), (str(C), str(B))}


def test_a_bound_ends_the_walk() -> None:
    def once(scheduler: ExhaustiveScheduler) -> None:
        run(scheduler, {A: sender(3, C), B: sender(3, C), C: listener(6, [])})

    scheduler = ExhaustiveScheduler()
    assert not scheduler.walk(once, 5)
    assert scheduler.orders + scheduler.redundant == 5


def busy(log: list[tuple[float, Address, str, int]]) -> dict[Address, Play]:
    """Three who send, receive, sleep, lock and compute; everything is logged with its time."""

    def play(node: SimulatedNode) -> None:
        lock = node.lock()
        others = [address for address in (A, B, C) if address != node.address]

        def listen() -> None:
            for _ in range(20):
                message = node.receive("x")
                with lock:
                    log.append((node.now(), node.address, "heard", message.body["n"]))
                message.release()

        node.spawn("listen", listen)
        for n in range(10):
            for other in others:
                node.send(other, "x", {"n": n}, TensorVector.zeros(n))
            with lock:
                node.compute(lambda: None, 0.003)
            log.append((node.now(), node.address, "sent", n))
        node.sleep(1.0)

    return dict.fromkeys((A, B, C), play)


def trace_of(scheduler: Scheduler) -> list[tuple[float, Address, str, int]]:
    log: list[tuple[float, Address, str, int]] = []
    run(scheduler, busy(log))
    return log


def test_a_seed_replays_to_the_same_trace() -> None:
    traces = [trace_of(SeededScheduler(seed)) for seed in range(10)]
    assert traces == [trace_of(SeededScheduler(seed)) for seed in range(10)]
    assert len({str(trace) for trace in traces}) == 10
    assert trace_of(TimedScheduler()) == trace_of(TimedScheduler())
