"""A set of learners that may not lose anybody."""

from __future__ import annotations

import pytest

from support.commands import until
from unisono.coordinator.client import Abandoned, Client
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.messages import Join
from unisono.coordinator.service import Service, serve
from unisono.errors import Cause
from unisono.fabric import COORDINATOR, Cancelled, TimedOut, learner
from unisono.fabric.local.host import Host


@pytest.mark.parametrize("fixed", [False, True])
def test_the_first_loss_ends_the_run_for_all_if_the_set_is_fixed(fixed: bool) -> None:
    host = Host()
    coordinator = host.node(COORDINATOR)
    service = Service(coordinator, MemoryJournal(), expected=3, timeout=30.0, fixed=fixed)
    coordinator.spawn("serve", lambda: serve(service))
    nodes = [host.node(learner(number)) for number in range(3)]
    for node in nodes:
        Client(node, 30.0).call(Join(""), "session")
    nodes[1].close()
    for node in (nodes[0], nodes[2]):
        with pytest.raises((Cancelled, TimedOut)) as ended:
            node.receive("never", timeout=10.0 if fixed else 0.3)
        reason = ended.value.__cause__
        assert isinstance(reason, Abandoned) == fixed
        if isinstance(reason, Abandoned):
            assert reason.failure.cause is Cause.LEARNER_LOST
            assert reason.line.startswith("learner 1 was lost (its process ended); go on from")
    host.close()


@pytest.mark.parametrize("announces", [False, True])
def test_a_loss_is_announced_while_others_go_on(
    announces: bool, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host()
    coordinator = host.node(COORDINATOR)
    service = Service(coordinator, MemoryJournal(), expected=2, timeout=5.0, announces=announces)
    coordinator.spawn("serve", lambda: serve(service))
    nodes = [host.node(learner(number)) for number in range(2)]
    for node in nodes:
        Client(node, 5.0).call(Join(""), "session")
    nodes[1].close()
    until(lambda: bool(service.state.lost), 60, "the loss")
    said = [record.getMessage() for record in caplog.records if "was lost" in record.getMessage()]
    line = "unisono: learner 1 was lost (its process ended); the others go on"
    assert said == ([line] if announces else [])
    host.close()
