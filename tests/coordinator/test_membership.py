"""Every learner comes to know all members, whatever messages are lost with the coordinator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from unisono.coordinator import membership
from unisono.coordinator.client import Client
from unisono.coordinator.directives import ViewChanged, ViewPart
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.membership import AT_ONCE, PAUSE_S, Membership
from unisono.coordinator.messages import Admitted, Join, Leave
from unisono.coordinator.outbox import Outbox
from unisono.coordinator.output import Output
from unisono.coordinator.service import Service, serve
from unisono.fabric import COORDINATOR, Address, Full, Member, View, learner
from unisono.fabric.api import BODY_LIMIT, encode
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import SeededScheduler

TIMEOUT = 5.0


class Cluster:
    """Clients that join and leave, and the coordinator's own code."""

    def __init__(self, expected: int, seed: int | None = None) -> None:
        scheduler = None if seed is None else SeededScheduler(seed)
        self.kernel = Kernel(
            scheduler=scheduler, network=SimulatedNetwork(latency=0.01), limit=10_000.0
        )
        self.expected = expected
        self.journal = MemoryJournal()
        self.nodes: dict[int, SimulatedNode] = {}
        self.asked = 0
        self.start_coordinator()

    def start_coordinator(self) -> None:
        node = SimulatedNode(self.kernel, COORDINATOR)
        self.service = Service(node, self.journal, expected=self.expected, timeout=TIMEOUT)
        node.spawn("serve", lambda: serve(self.service))

    def kill_coordinator(self, back_after: float) -> None:
        if COORDINATOR in self.kernel.nodes:
            self.kernel.kill(COORDINATOR)
            self.kernel.at(self.kernel.now + back_after, self.start_coordinator)

    def join(self, number: int, then: Callable[[Client, SimulatedNode], None]) -> None:
        node = self.nodes[number] = SimulatedNode(self.kernel, learner(number))

        def main() -> None:
            client = Client(node, TIMEOUT)
            assert client.call(Join(f"unix:/run/unisono/{number}"), "session") == Admitted()
            then(client, node)

        self.kernel.main(node, main)


def test_a_thousand_learners_join() -> None:
    """Their view is larger than a message may be."""
    many = 1000
    cluster = Cluster(many)
    assert len(encode({"x": [[str(learner(n)), "e" * 107] for n in range(many)]})) <= BODY_LIMIT
    for number in range(many):
        cluster.join(number, lambda client, node: node.sleep(1.0))
    cluster.kernel.run()
    views = [node.members() for node in cluster.nodes.values()]
    assert all(len(view.addresses()) == many for view in views)
    assert all(view == cluster.service.state.view for view in views)
    # Simulated nodes share what would be a million members.
    assert len({id(view) for view in views}) == 1


@pytest.mark.parametrize("seed", range(40))
def test_all_know_the_same_members_in_the_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some join late, some leave or are killed, and the coordinator is killed at any time."""
    source = random.Random(seed)
    monkeypatch.setattr(membership, "AT_ONCE", source.choice([0, 3, 50]))
    monkeypatch.setattr(membership, "PAUSE_S", source.choice([0.001, 0.05]))
    monkeypatch.setattr(membership, "PART_BYTES", source.choice([1, 100, 1000]))
    cluster = Cluster(4, seed)
    end = 40.0

    def stay(client: Client, node: SimulatedNode) -> None:
        node.sleep(end - node.now())

    def leave(client: Client, node: SimulatedNode) -> None:
        node.sleep(source.uniform(0.0, 3.0))
        client.call(Leave(), "session")
        node.close()

    for number in range(12):
        late = source.uniform(0.0, 3.0) if number and source.random() < 0.5 else 0.0
        then = leave if number > 3 and source.random() < 0.4 else stay
        if late:
            cluster.kernel.at(late, lambda n=number, then=then: cluster.join(n, then))  # type: ignore[misc]
        else:
            cluster.join(number, then)
    for number in source.sample(range(4, 12), 2):
        cluster.kernel.at(
            source.uniform(0.5, 4.0), lambda n=number: cluster.kernel.kill(learner(n))
        )
    for _ in range(3):
        at, away = source.uniform(0.0, 4.0), source.uniform(0.01, 1.0)
        cluster.kernel.at(at, lambda away=away: cluster.kill_coordinator(away))  # type: ignore[misc]
    found: list[tuple[View, View]] = []

    def look() -> None:
        living = cluster.service.state.view
        found.extend((cluster.nodes[a.number].members(), living) for a in living.addresses())

    cluster.kernel.at(end - 1.0, look)
    cluster.kernel.run()
    assert len(found) >= 4
    assert all(view == expected for view, expected in found)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def view_of(version: int, members: range, endpoint: str = "e") -> View:
    return View(version, tuple(Member(learner(n), endpoint) for n in members))


def told(outputs: list[Output]) -> dict[Address, list[Any]]:
    bodies: dict[Address, list[Any]] = {}
    for body in {id(output.body): output.body for output in outputs}.values():
        assert len(encode(body)) <= BODY_LIMIT
    for output in outputs:
        bodies.setdefault(output.to, []).append(output.body)
    return bodies


def whole(parts: list[ViewPart]) -> View:
    assert [part.part for part in parts] == list(range(parts[0].parts))
    return View(parts[0].version, tuple(m for part in parts for m in part.members))


def test_who_knows_the_view_gets_the_change_alone() -> None:
    members = Membership(Clock())
    first = members.tell(view_of(2, range(2)))
    assert all(whole(parts) == view_of(2, range(2)) for parts in told(first).values())
    assert members.tell(view_of(2, range(2))) == []
    second = told(members.tell(view_of(5, range(1, 4))))
    joined = (Member(learner(2), "e"), Member(learner(3), "e"))
    assert second[learner(1)] == [ViewChanged(2, 5, joined, (learner(0),))]
    assert whole(second[learner(3)]) == view_of(5, range(1, 4))
    assert set(second) == {learner(1), learner(2), learner(3)}


@pytest.mark.parametrize("endpoint", ["tcp:10.0.0.1:4711", "unix:" + "\x07" * 102, "é" * 60])
def test_a_view_comes_in_messages_of_allowed_size(endpoint: str) -> None:
    many = range(3000)
    members = Membership(Clock())
    members.tell(view_of(1, range(1), endpoint))
    bodies = told(members.tell(view_of(2, many, endpoint)))
    assert len(bodies) == len(many)
    for who in (learner(0), learner(1), learner(2999)):
        assert whole(bodies[who]) == view_of(2, many, endpoint)
        assert whole(told(members.whole(who))[who]) == view_of(2, many, endpoint)
    assert members.whole(learner(3000)) == []


def test_many_members_are_told_of_several_changes_at_once() -> None:
    clock = Clock()
    members = Membership(clock)
    many = AT_ONCE + 100
    members.tell(view_of(1, range(many)))
    assert members.wait_s(view_of(2, range(many + 1))) == pytest.approx(100 * PAUSE_S)
    assert members.tell(view_of(2, range(many + 1))) == []
    # One who asks gets the view to which the next change belongs.
    assert whole(told(members.whole(learner(3)))[learner(3)]) == view_of(1, range(many))
    clock.now += 101 * PAUSE_S
    bodies = told(members.tell(view_of(9, range(many + 8))))
    assert bodies[learner(3)][0].since == 1 and len(bodies[learner(3)][0].joined) == 8
    assert members.wait_s(view_of(9, range(many + 8))) is None


def test_a_few_members_are_told_at_once() -> None:
    members = Membership(Clock())
    for version in range(1, AT_ONCE + 1):
        assert members.tell(view_of(version, range(version))) != []


def test_changes_that_wait_for_a_learner_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    node = SimulatedNode(kernel, COORDINATOR)
    box, sent = Outbox(node), list[Any]()
    full = True

    def send(to: Address, port: str, body: Any, *, wait: bool) -> None:
        if full:
            raise Full
        sent.append(body)

    monkeypatch.setattr(node, "send", send)
    for version in range(1, 5):
        box.send(Output(learner(0), "control", ViewChanged(version - 1, version)))
    full = False
    box.flush()
    assert sent == [ViewChanged(4, 4)] and box.empty


def test_a_learner_that_missed_a_change_asks_for_the_view_once_until_it_comes() -> None:
    kernel = Kernel(network=SimulatedNetwork(latency=0.1), limit=100.0)
    coordinator, node = SimulatedNode(kernel, COORDINATOR), SimulatedNode(kernel, learner(0))
    requests: list[float] = []

    def tell(body: ViewChanged | ViewPart) -> None:
        coordinator.send(node.address, "control", body, wait=False)

    def serve_views() -> None:
        while True:
            if isinstance(coordinator.receive("coordinator").body, dict):
                requests.append(kernel.now)

    def main() -> None:
        Client(node, TIMEOUT, heartbeats=False)
        node.sleep(5.0)

    coordinator.spawn("serve", serve_views)
    kernel.main(node, main)
    view = view_of(3, range(3))
    kernel.at(1.0, lambda: tell(ViewChanged(2, 3, (Member(learner(2), "e"),))))
    kernel.at(1.5, lambda: tell(ViewChanged(3, 4, (Member(learner(3), "e"),))))
    kernel.at(2.0, lambda: tell(ViewPart(3, 0, 2, view.members[:1])))
    kernel.at(2.0, lambda: tell(ViewPart(3, 1, 2, view.members[1:])))
    kernel.at(2.5, lambda: tell(ViewChanged(3, 4, (Member(learner(3), "e"),))))
    kernel.at(3.0, lambda: tell(ViewChanged(4, 5, (), (learner(1),))))
    kernel.run()
    assert len(requests) == 1
    assert node.members() == View(5, tuple(Member(learner(n), "e") for n in (0, 2, 3)))
