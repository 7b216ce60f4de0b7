"""A member that sends something malformed is dropped, in one line; the others go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from unisono.coordinator.client import Abandoned, Client
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.messages import (
    Idle,
    Join,
    OfLearner,
    RequestAssignment,
    RoundBroken,
    Sync,
    Synced,
)
from unisono.coordinator.service import Service, serve
from unisono.fabric import COORDINATOR, Cancelled, Fabric, MembersChanged, learner
from unisono.fabric.local.host import Host
from unisono.strategies.engines import gossip_messages

MALFORMED: list[Any] = [
    {},
    {"who": "learner-1.0#0"},
    {"kind": "nonsense"},
    {"kind": "numbered", "sequence": 1},
    {"kind": "numbered", "sequence": "1", "operation": {"kind": "idle"}},
    {"kind": "numbered", "sequence": 1, "operation": {"kind": "lost", "reason": "silent"}},
    [1, 2],
    None,
]


class Run:
    """A coordinator and two members."""

    def __init__(self) -> None:
        self.host = Host()
        self.events: list[dict[str, Any]] = []
        coordinator = self.host.node(COORDINATOR)
        self.service = Service(
            coordinator, MemoryJournal(), expected=2, timeout=30.0, sink=self.events.append
        )
        coordinator.spawn("serve", lambda: serve(self.service))
        self.nodes: list[Fabric] = [self.host.node(learner(number)) for number in range(2)]
        self.nodes[0].port(gossip_messages.PORT, members=True)
        self.nodes[0].spawn("agent", self._listen)
        self.clients = [Client(node, 30.0) for node in self.nodes]
        for client in self.clients:
            client.call(Join(""), "session")

    def _listen(self) -> None:
        """As the agent of a strategy does."""
        while True:
            message = self.nodes[0].receive(gossip_messages.PORT)
            self.nodes[0].post("received", message.body)


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.host.close()


def check_dropped(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Member 1 is out of the run and knows why; member 0 is still served."""
    with pytest.raises(Cancelled) as ended:
        run.nodes[1].receive("never", timeout=20.0)
    reason = ended.value.__cause__
    assert isinstance(reason, Abandoned) and "malformed message" in reason.failure.text
    while True:
        notice = run.nodes[0].receive("received", timeout=20.0).body
        if isinstance(notice, MembersChanged) and notice.gone:
            break
    assert notice.gone == (learner(1),)
    assert run.clients[0].call(Sync(), "session") == Synced()
    assert run.service.state.lost == [learner(1)]
    lost = [event for event in run.events if event["event"] == "lost"]
    assert [(event["learner"], event["cause"]) for event in lost] == [(1, "malformed")]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "learner-1.0#0" in line and "\n" not in line


@pytest.mark.parametrize("body", MALFORMED, ids=repr)
def test_the_coordinator_drops_it(body: Any, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run.nodes[1].send(COORDINATOR, "coordinator", body)
        run.nodes[1].send(COORDINATOR, "coordinator", body)
        check_dropped(run, caplog)


@pytest.mark.parametrize(
    "operation",
    [RoundBroken(0), RoundBroken(-1), RoundBroken(10**12), RequestAssignment(-5, patient=True)],
    ids=repr,
)
def test_the_coordinator_drops_who_says_what_none_can_mean(
    operation: OfLearner, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Well-formed, and impossible: such messages made it wait for ever, or raise."""
    with caplog.at_level(logging.WARNING):
        run.clients[1].tell(operation)
        run.clients[1].tell(Idle())
        check_dropped(run, caplog)


@pytest.mark.parametrize("body", [{}, {"kind": "tick"}, {"kind": "ask", "notes": {"x": []}}])
def test_another_member_has_it_dropped(
    body: Any, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run.nodes[1].send(learner(0), "strategy", body)
        check_dropped(run, caplog)
