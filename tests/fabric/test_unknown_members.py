"""A message may name somebody whose membership has not been read yet."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from unisono.fabric import COORDINATOR, Cancelled, Gone, Member, TensorVector, View, learner
from unisono.fabric.local.host import Host


def test_a_send_waits_for_the_view_that_names_its_receiver(tmp_path: Path) -> None:
    hosts = [Host(tmp_path), Host(tmp_path)]
    a, b = (host.node(learner(number)) for number, host in enumerate(hosts))
    a.meet(Member(COORDINATOR, "unix:nowhere"))
    sent = threading.Event()

    def send() -> None:
        a.send(b.address, "x", {"n": 1}, TensorVector.zeros(3))
        sent.set()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    assert not sent.wait(0.2)
    a.set_members(View(1, (Member(b.address, b.endpoint),)))
    assert sent.wait(60)
    message = b.receive("x", timeout=60)
    assert message.body == {"n": 1}
    message.release()
    for host in hosts:
        host.close()


def test_a_send_waits_for_the_meeting_with_its_receiver(tmp_path: Path) -> None:
    hosts = [Host(tmp_path), Host(tmp_path)]
    a, b = (host.node(learner(number)) for number, host in enumerate(hosts))
    a.meet(Member(COORDINATOR, "unix:nowhere"))
    timer = threading.Timer(0.1, lambda: a.meet(Member(b.address, b.endpoint)))
    timer.start()
    a.send(b.address, "x", {"n": 1})
    assert b.receive("x", timeout=60).body == {"n": 1}
    for host in hosts:
        host.close()


def test_a_send_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    host = Host(tmp_path)
    node = host.node(learner(0))
    node.meet(Member(COORDINATOR, "unix:nowhere"))
    timer = threading.Timer(0.1, lambda: node.cancel(ValueError("enough")))
    timer.start()
    with pytest.raises(Cancelled):
        node.send(learner(1), "x", {})
    host.close()


def test_who_came_and_went_is_gone(tmp_path: Path) -> None:
    host = Host(tmp_path)
    node = host.node(learner(0))
    node.set_members(View(1, (Member(learner(1), "unix:nowhere"),)))
    node.set_members(View(2, ()))
    with pytest.raises(Gone):
        node.send(learner(1), "x", {})
    host.close()
