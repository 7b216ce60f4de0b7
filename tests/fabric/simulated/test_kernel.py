"""The virtual clock, what it costs to send, and faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from unisono.fabric import (
    COORDINATOR,
    Cancelled,
    Member,
    SizeVector,
    TensorVector,
    TimedOut,
    View,
    learner,
)
from unisono.fabric.blocking import BlockingCallError
from unisono.fabric.simulated.kernel import DeadlockError, Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import SeededScheduler

A, B, C = (learner(number) for number in range(3))


class World:
    """A kernel and the nodes on it."""

    def __init__(self, kernel: Kernel | None = None) -> None:
        self.kernel = kernel or Kernel()

    def play(
        self, address: tuple[str, int, int, int], play: Callable[[SimulatedNode], None]
    ) -> SimulatedNode:
        node = SimulatedNode(self.kernel, learner(0)._make(address))
        self.kernel.main(node, lambda: play(node))
        return node

    def run(self) -> None:
        self.kernel.run()


def test_a_message_takes_latency_and_bytes_over_bandwidth() -> None:
    world = World(Kernel(network=SimulatedNetwork(latency=0.5, bandwidth=1000.0)))
    body = len('{"n":1}')

    def send(node: SimulatedNode) -> None:
        node.send(B, "x", {"n": 1})
        node.send(B, "y", {"n": 1}, SizeVector(1000, 4))
        node.send(B, "y", {"n": 1})
        assert node.now() == 0.0

    def receive(node: SimulatedNode) -> None:
        node.receive("x")
        assert node.now() == pytest.approx(0.5 + body / 1000)
        message = node.receive("y")
        assert message.vector is not None and message.vector.nbytes == 4000
        assert node.now() == pytest.approx(4.5 + body / 1000)
        node.receive("y")
        assert node.now() == pytest.approx(4.5 + body / 1000), "it must not overtake"

    world.play(A, send)
    world.play(B, receive)
    world.run()


def test_an_interruption_of_any_activity_ends_the_simulation() -> None:
    """Ctrl-C comes wherever it computes, also where a node's bugs are its own affair."""
    world = World()

    def interrupted() -> None:
        raise KeyboardInterrupt

    def wait(node: SimulatedNode) -> None:
        node.spawn("beside", interrupted)
        node.receive("never")

    world.play(A, wait)
    with pytest.raises(KeyboardInterrupt):
        world.run()


def test_computing_takes_its_cost_times_the_slowness_and_may_be_skipped() -> None:
    for numerics in (True, False):
        kernel = Kernel(numerics=numerics)
        node = SimulatedNode(kernel, A, slowness=3.0)
        results: list[object] = []
        kernel.main(
            node, lambda node=node, results=results: results.append(node.compute(lambda: 7, 2.0))
        )  # type: ignore[misc]
        kernel.run()
        assert results == [7 if numerics else None]
        assert kernel.now == 6.0


def test_a_deadlock_says_who_waits_where() -> None:
    world = World()

    def wait_for_godot(node: SimulatedNode) -> None:
        node.receive("never")

    world.play(A, wait_for_godot)
    with pytest.raises(DeadlockError, match="nobody can run: learner 0:main in wait_for_godot"):
        world.run()


def test_a_livelock_ends_at_the_limit() -> None:
    world = World(Kernel(limit=100.0))

    def turn(node: SimulatedNode) -> None:
        while True:
            node.sleep(1.0)

    world.play(A, turn)
    with pytest.raises(DeadlockError, match="not over after 100 s"):
        world.run()


def test_the_first_exception_ends_the_run() -> None:
    world = World()
    ended: list[str] = []

    def fail(node: SimulatedNode) -> None:
        node.sleep(1.0)
        raise KeyError("a bug")

    def wait(node: SimulatedNode) -> None:
        try:
            node.sleep(1e5)
        finally:
            ended.append("unwound")

    world.play(A, fail)
    world.play(B, wait)
    with pytest.raises(KeyError, match="a bug"):
        world.run()
    assert ended == ["unwound"]


def test_one_killed_in_a_pause_does_not_pause_its_successor() -> None:
    world = World()
    heard: list[float] = []

    def faults(node: SimulatedNode) -> None:
        node.sleep(1.0)
        world.kernel.pause(COORDINATOR)
        node.sleep(1.0)
        world.kernel.kill(COORDINATOR)
        world.play(COORDINATOR, lambda coordinator: heard.append(coordinator.now()))
        node.sleep(1.0)

    world.play(COORDINATOR, lambda node: node.sleep(100.0))
    world.play(A, faults)
    world.run()
    assert heard == [2.0]


def test_a_message_of_after_a_kill_is_not_early() -> None:
    """An arrival that was planned for the dead coordinator does not bring its successor's mail."""
    world = World(Kernel(network=SimulatedNetwork(latency=1.0)))
    times: list[float] = []

    def sender(node: SimulatedNode) -> None:
        node.send(COORDINATOR, "x", {"n": 0})
        node.sleep(0.5)
        world.kernel.kill(COORDINATOR)
        world.play(COORDINATOR, receive)
        node.send(COORDINATOR, "x", {"n": 1})

    def receive(node: SimulatedNode) -> None:
        assert node.receive("x").body["n"] == 1
        times.append(node.now())

    world.play(COORDINATOR, lambda node: node.sleep(100.0))
    world.play(A, sender)
    world.run()
    assert times == [1.5]


def test_healing_does_not_hurry_what_is_still_on_its_way() -> None:
    world = World(Kernel(network=SimulatedNetwork(latency=1.0)))
    times: list[tuple[int, float]] = []

    def sender(node: SimulatedNode) -> None:
        world.kernel.cut(A, B)
        node.send(B, "x", {"n": 0})
        node.sleep(3.0)
        node.send(B, "x", {"n": 1})
        node.sleep(0.5)
        world.kernel.heal(A, B)

    def receive(node: SimulatedNode) -> None:
        for _ in range(2):
            times.append((node.receive("x").body["n"], node.now()))

    world.play(A, sender)
    world.play(B, receive)
    world.run()
    assert times == [(0, 3.5), (1, 4.0)]


def test_a_spurious_wake_does_not_shorten_a_sleep() -> None:
    """Cancelling wakes an activity twice; if it begins another life, the second finds it asleep."""
    world = World()
    times: list[float] = []

    def live(node: SimulatedNode) -> None:
        node.spawn("ends it", lambda: (node.sleep(1.0), node.cancel(ValueError()))[0])  # type: ignore[func-returns-value]
        with pytest.raises(Cancelled):
            node.receive("never")
        node.close()
        next_incarnation = SimulatedNode(world.kernel, node.address.next_incarnation())
        world.kernel.adopt(next_incarnation)
        next_incarnation.sleep(10.0)
        times.append(next_incarnation.now())

    world.play(A, live)
    world.run()
    assert times == [11.0]


def test_cancelling_reaches_one_who_was_set_aside_inside_a_call() -> None:
    """Such a call does nothing any more: no message leaves a cancelled node, nobody sleeps on."""
    for seed in range(20):
        world = World(Kernel(scheduler=SeededScheduler(seed, switching=0.5)))
        late: list[int] = []

        def live(node: SimulatedNode, late: list[int] = late) -> None:
            over: list[bool] = []

            def talk() -> None:
                for n in range(1000):
                    node.send(node.address, str(n), {})
                    late.extend(over and [n])

            node.spawn("sleeps", lambda: node.sleep(1e5))
            node.spawn("talks", talk)
            node.spawn("ends", lambda: (over.append(True), node.cancel(ValueError()))[0])  # type: ignore[func-returns-value]
            with pytest.raises(Cancelled):
                node.receive("never")
            node.close()

        world.play(A, live)
        world.run()
        assert world.kernel.now < 1.0
        assert late == []


@pytest.mark.parametrize("seed", range(5))
def test_a_node_that_keeps_its_random_state_draws_as_if_alone(seed: int) -> None:
    """Beside one that keeps its own, too, and one that draws from the common generator."""

    def draw(node: SimulatedNode, into: list[float], keeps: bool) -> None:
        if keeps:
            node.keep_random_state()
            torch.manual_seed(node.address.number)
        for _ in range(10):
            into.append(float(torch.rand(())))
            node.sleep(0.001)

    def run(*players: tuple[int, bool]) -> dict[int, list[float]]:
        torch.manual_seed(99)
        world = World(Kernel(scheduler=SeededScheduler(seed, switching=0.5)))
        drawn: dict[int, list[float]] = {number: [] for number, _ in players}
        for number, keeps in players:
            world.play(learner(number), lambda node, n=number, k=keeps: draw(node, drawn[n], k))  # type: ignore[misc]
        world.run()
        return drawn

    together = run((1, True), (2, True), (3, False))
    assert together[1] == run((1, True))[1]
    assert together[2] == run((2, True))[2]
    assert together[3] == run((3, False))[3]


def test_the_next_life_draws_on_from_where_the_last_one_was() -> None:
    drawn: list[float] = []
    world = World()

    def live(node: SimulatedNode) -> None:
        torch.manual_seed(5)
        node.keep_random_state()
        drawn.append(float(torch.rand(())))
        node.close()
        next_incarnation = SimulatedNode(world.kernel, node.address.next_incarnation())
        world.kernel.adopt(next_incarnation)
        next_incarnation.sleep(1.0)
        drawn.append(float(torch.rand(())))

    def disturb(node: SimulatedNode) -> None:
        node.sleep(0.5)
        torch.rand(7)

    world.play(A, live)
    world.play(B, disturb)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    world.run()
    torch.manual_seed(5)
    assert drawn == [float(torch.rand(())) for _ in range(2)]
    assert not torch.equal(before, torch.get_rng_state())


def test_waiting_for_a_lock_inside_a_mode_is_refused() -> None:
    """An uncontended lock is fine there: nobody runs in between, under any schedule."""
    world = World(Kernel(scheduler=SeededScheduler(0, switching=1.0)))

    def live(node: SimulatedNode) -> None:
        lock = node.lock()

        def hold() -> None:
            assert torch.is_grad_enabled()
            with lock:
                node.sleep(1.0)

        node.spawn("hold", hold)
        with torch.no_grad(), node.lock():
            pass
        node.sleep(0.5)
        with torch.no_grad(), pytest.raises(BlockingCallError):
            lock.__enter__()

    world.play(A, live)
    world.run()


def test_a_timer_of_a_receive_that_was_answered_does_nothing() -> None:
    world = World()

    def live(node: SimulatedNode) -> None:
        node.post("x", {})
        node.receive("x", timeout=1.0)
        with pytest.raises(TimedOut):
            node.receive("x", timeout=5.0)
        assert node.now() == 5.0

    world.play(A, live)
    world.run()


def test_vectors_are_copied_and_views_taken_over() -> None:
    world = World()

    def send(node: SimulatedNode) -> None:
        vector = TensorVector.zeros(3)
        node.send(B, "x", {}, vector)
        vector.tensor.fill_(1.0)

    def receive(node: SimulatedNode) -> None:
        view = View(1, (Member(A, ""), Member(B, "")))
        node.set_members(view)
        assert node.members() is view
        vector = node.receive("x").vector
        assert isinstance(vector, TensorVector) and not vector.tensor.any()

    world.play(A, send)
    world.play(B, receive)
    world.run()


def test_activities_that_start_each_other_do_not_nest() -> None:
    world = World()
    ended: list[int] = []

    def start(node: SimulatedNode, left: int) -> None:
        if left:
            node.spawn("next", lambda: start(node, left - 1))
        node.sleep(1.0)
        ended.append(left)

    world.play(A, lambda node: (start(node, 3000), node.sleep(1.0))[1])
    world.run()
    assert ended == list(range(3000, -1, -1))


def test_events_of_one_time_happen_in_the_order_in_which_they_were_planned() -> None:
    world = World()
    order: list[str] = []

    def sleeper(name: str, *spans: float) -> Callable[[SimulatedNode], None]:
        def play(node: SimulatedNode) -> None:
            for span in spans:
                node.sleep(span)
            order.append(name)

        return play

    world.play(A, sleeper("planned second, in two parts", 0.5, 0.5))
    world.play(B, sleeper("planned first", 1.0))
    world.play(C, sleeper("planned last, at that time", 1.0, 0.0))
    world.kernel.at(1.0, lambda: order.append("planned before the run"))
    world.run()
    assert order == [
        "planned before the run",
        "planned first",
        "planned second, in two parts",
        "planned last, at that time",
    ]


@pytest.mark.parametrize("kernel", [Kernel, lambda: Kernel(scheduler=SeededScheduler(0))])
def test_what_comes_at_this_very_time_is_in_time(kernel: Callable[[], Kernel]) -> None:
    """A timeout of 0 takes what is here, and what arrives now, and waits for nothing else."""
    world = World(kernel())
    found: list[int] = []

    def send(node: SimulatedNode) -> None:
        node.send(B, "x", 1)
        node.sleep(1.0)
        node.send(B, "x", 2)

    def receive(node: SimulatedNode) -> None:
        found.append(node.receive("x").body)
        with pytest.raises(TimedOut):
            node.receive("x", timeout=0.0)
        assert node.now() < 1.0
        found.append(node.receive("x", timeout=5.0).body)

    world.play(A, send)
    world.play(B, receive)
    world.run()
    assert found == [1, 2]


def test_one_started_again_at_its_address_hears_those_who_spoke_to_it_before() -> None:
    world = World()
    heard: list[object] = []

    def speak(node: SimulatedNode) -> None:
        node.send(B, "x", "before")
        node.sleep(1.0)
        world.kernel.kill(B)
        node.send(B, "x", "lost")
        world.play(B, listen)
        node.send(B, "x", "after")
        node.sleep(1.0)

    def listen(node: SimulatedNode) -> None:
        heard.append(node.receive("x").body)
        node.sleep(5.0)

    world.play(A, speak)
    world.play(B, listen)
    world.run()
    assert heard == ["before", "after"]
