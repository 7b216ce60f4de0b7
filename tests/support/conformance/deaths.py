"""Conformance: deaths, departures, pauses, partitions, and a coordinator that comes back."""

from __future__ import annotations

from support.conformance.messages import is_pattern, pattern
from support.conformance.stage import A, Ability, B, C, D, Stage, case, hear, tell, without
from unisono.fabric import (
    COORDINATOR,
    CREDIT,
    ConnectionLost,
    CoordinatorFound,
    Fabric,
    Full,
    Gone,
    Member,
    MembersChanged,
    TimedOut,
    View,
)
from unisono.fabric.api import BODY_LIMIT


def nothing_at(node: Fabric, port: str) -> bool:
    """Whether no message comes for a while."""
    try:
        node.receive(port, timeout=0.1)
    except TimedOut:
        return True
    return False


def is_gone(node: Fabric) -> bool:
    """Whether the coordinator is known to be gone."""
    try:
        node.send(COORDINATOR, "x", {"word": "hello"})
    except Gone:
        return True
    return False


@case(A, B, C)
def gone_comes_after_the_last_message(node: Fabric, stage: Stage) -> None:
    """B hears of A's death before it has received anything of what A sent."""
    if node.address == A:
        for n in range(5):
            node.send(B, "x", {"n": n}, pattern(1000, n) if n % 2 else None)
        tell(node, C, "sent")
        node.receive("never")
    elif node.address == C:
        hear(node, A, "sent")
        stage.kill(A)
        tell(node, B, "dead")
    else:
        hear(node, C, "dead")
        node.set_members(without(stage.view, A))
        for n in range(5):
            message = node.receive("x", A)
            assert message.body["n"] == n
            assert is_pattern(message.vector, 1000, n) if n % 2 else message.vector is None
            message.release()
        for _ in range(2):
            try:
                node.receive("x", A)
            except Gone as gone:
                assert gone.address == A
                continue
            raise AssertionError("a message of nobody")


@case(A, B)
def what_was_sent_before_an_orderly_end_arrives(node: Fabric, stage: Stage) -> None:
    """More than any socket's buffer holds; A closes while B is busy."""
    if node.address == A:
        for n in range(CREDIT):
            node.send(B, "x", {"n": n, "text": "a" * (BODY_LIMIT - 100)})
            node.send(B, "y", {"n": n}, pattern(100_000, n))
        return
    node.sleep(0.2)
    for n in range(CREDIT):
        assert node.receive("x", A).body["n"] == n
        message = node.receive("y", A)
        assert is_pattern(message.vector, 100_000, n)
        message.release()


@case(A, B, C, needs=[Ability.PAUSE])
def what_was_sent_to_one_who_stands_still_arrives(node: Fabric, stage: Stage) -> None:
    """B takes nothing until A has closed, or waits in closing."""
    if node.address == C:
        hear(node, B, "here")
        stage.pause(B)
        tell(node, A, "go")
        node.sleep(0.2)
        stage.resume(B)
        return
    if node.address == A:
        hear(node, C, "go")
        for n in range(CREDIT):
            node.send(B, "x", {"n": n, "text": "a" * (BODY_LIMIT - 100)}, pattern(1000, n))
        return
    tell(node, C, "here")
    for n in range(CREDIT):
        message = node.receive("x", A)
        assert message.body["n"] == n and is_pattern(message.vector, 1000, n)
        message.release()


@case(A, B)
def sending_to_one_who_is_gone_raises(node: Fabric, stage: Stage) -> None:
    """From the moment on at which the new view was taken over, in every way of sending."""
    if node.address == B:
        hear(node, A, "go")
        return
    tell(node, B, "go")
    node.set_members(without(stage.view, B))
    for wait in (True, False):
        for vector in (None, pattern(3, 1)):
            try:
                node.send(B, "x", {}, vector, wait=wait)
            except Gone as gone:
                assert gone.address == B
                continue
            raise AssertionError("sent to somebody who is gone")


@case(A, B, C)
def a_declared_death_wakes_who_waits(node: Fabric, stage: Stage) -> None:
    """One activity waits for a message of the dead, one for credit."""
    if node.address == A:
        node.receive("never")
        return
    if node.address == C:
        hear(node, B, "full")
        node.sleep(0.05)
        stage.kill(A)
        tell(node, B, "dead")
        return

    def read() -> None:
        try:
            node.receive("x", A)
        except Gone:
            node.post("woken", {"who": "reader"})

    def write() -> None:
        for _ in range(CREDIT):
            node.send(A, "x", {})
        tell(node, C, "full")
        try:
            while True:
                node.send(A, "x", {})
                node.sleep(0.001)
        except Gone:
            node.post("woken", {"who": "writer"})

    node.spawn("read", read)
    node.spawn("write", write)
    hear(node, C, "dead")
    node.sleep(0.05)
    node.set_members(without(stage.view, A))
    assert {node.receive("woken").body["who"] for _ in range(2)} == {"reader", "writer"}


@case(A, B)
def changes_of_members_are_told_where_they_are_wanted(node: Fabric, stage: Stage) -> None:
    """On ports opened with ``members``; an older view changes nothing."""
    if node.address == B:
        return
    node.port("told", members=True)
    node.port("spared")
    node.set_members(without(stage.view, B))
    joined = View(stage.view.version + 2, (*stage.view.members[:1], Member(D, "nowhere")))
    node.set_members(joined)
    node.set_members(without(stage.view, A))
    assert node.members() == joined
    version = stage.view.version
    for expected in (
        MembersChanged(version + 1, gone=(B,), joined=()),
        MembersChanged(version + 2, gone=(), joined=(D,)),
    ):
        notice = node.receive("told")
        assert (notice.sender, notice.body) == (node.address, expected)
    assert nothing_at(node, "told")
    assert nothing_at(node, "spared")


@case(A, B, C)
def one_who_is_held_for_dead_harms_nobody(node: Fabric, stage: Stage) -> None:
    """A lives. B declares it dead, with a vector of A's unread, and A goes on sending."""
    count = 50_000
    if node.address == A:
        node.send(B, "x", {"n": 1}, pattern(count, 1))
        tell(node, C, "sent")
        hear(node, C, "declared")
        node.send(B, "x", {"n": 2}, pattern(count, 2), wait=False)
        for n in range(20):
            node.send(C, "x", {}, pattern(count, n + 3))
    elif node.address == C:
        hear(node, A, "sent")
        tell(node, B, "declare")
        hear(node, B, "declared")
        tell(node, A, "declared")
        for n in range(20):
            message = node.receive("x", A)
            assert is_pattern(message.vector, count, n + 3)
            message.release()
        tell(node, B, "look")
    else:
        hear(node, C, "declare")
        node.set_members(without(stage.view, A))
        tell(node, C, "declared")
        hear(node, C, "look")
        message = node.receive("x", A)
        assert message.body["n"] == 1 and is_pattern(message.vector, count, 1)
        message.release()
        assert nothing_at(node, "x")


@case(A, B)
def a_newcomer_is_reached_and_reaches(node: Fabric, stage: Stage) -> None:
    """The next incarnation of B is another address: its messages are not the first one's."""
    if node.address == A:
        node.send(B, "x", {"n": 0})
        assert node.receive("x", B).body["n"] == 1
        member = stage.start(B.next_incarnation())
        node.set_members(View(stage.view.version + 1, (stage.view.members[0], member)))
        node.send(B.next_incarnation(), "x", {"n": 0})
        assert node.receive("x", B.next_incarnation()).body["n"] == 1
        try:
            node.receive("x", B)
        except Gone:
            return
        raise AssertionError("a message of the dead")
    else:
        message = node.receive("x", A)
        node.send(A, "x", {"n": message.body["n"] + 1})


@case(A, B, C)
def the_others_go_on_after_a_death(node: Fabric, stage: Stage) -> None:
    """C dies undeclared while A talks with B, and A goes on writing to the dead."""
    if node.address == C:
        while True:
            node.receive("x").release()
    for n in range(40):
        if node.address == B:
            message = node.receive("x", A)
            node.send(A, "x", {"n": n}, message.vector)
            message.release()
            continue
        if n == 10:
            stage.kill(C)
        node.send(B, "x", {"n": n}, pattern(5000, n))
        for vector in (None, pattern(5000, n)):
            try:
                node.send(C, "x", {}, vector, wait=False)
            except Full:
                continue
        answer = node.receive("x", B)
        assert answer.body["n"] == n and is_pattern(answer.vector, 5000, n)
        answer.release()


@case(COORDINATOR, A, B)
def a_lost_connection_is_told_after_the_last_message(node: Fabric, stage: Stage) -> None:
    """The coordinator hears that A's process has ended, on a port opened with ``lost``."""
    if node.address == A:
        node.port("control", members=True)
        while is_gone(node):
            node.receive("control")
        hear(node, COORDINATOR, "listening")
        node.send(COORDINATOR, "x", {"word": "work"})
        tell(node, B, "sent")
        node.receive("never")
    elif node.address == B:
        hear(node, A, "sent")
        stage.kill(A)
    else:
        node.port("x", lost=True)
        tell(node, A, "listening")
        said: list[object] = []
        while ConnectionLost(A) not in said:
            message = node.receive("x")
            is_notice = isinstance(message.body, ConnectionLost)
            assert message.sender == (COORDINATOR if is_notice else A)
            if message.body != ConnectionLost(B):
                said.append(message.body)
        assert said == [{"word": "hello"}, {"word": "work"}, ConnectionLost(A)]


@case(COORDINATOR, A, needs=[Ability.RETURN])
def a_coordinator_that_comes_back_is_told(node: Fabric, stage: Stage) -> None:
    """Gone, after its last words; then a notice, and the connection works again.

    The next incarnation may speak before it was found: it knows from its journal where everybody
    is.
    """
    if node.address == COORDINATOR:
        node.send(A, "first", {"life": stage.incarnation})
        assert node.receive("x").sender == A
        for n in range(3):
            node.send(A, "x", {"n": n, "life": stage.incarnation}, pattern(100, n))
        tell(node, A, "sent")
        node.receive("never")
    node.port("control", members=True)
    for incarnation in range(3):
        assert node.receive("first").body["life"] == incarnation
        while is_gone(node):
            assert node.receive("control").body == CoordinatorFound()
        hear(node, COORDINATOR, "sent")
        stage.kill(COORDINATOR)
        for n in range(3):
            message = node.receive("x", COORDINATOR)
            assert (message.body["n"], message.body["life"]) == (n, incarnation)
            assert is_pattern(message.vector, 100, n)
            message.release()
        try:
            node.receive("x", COORDINATOR)
        except Gone:
            assert is_gone(node)
        else:
            raise AssertionError("a message of nobody")
        if incarnation < 2:
            stage.start(COORDINATOR)


@case(A, B, C, needs=[Ability.PAUSE])
def a_pause_loses_and_reorders_nothing(node: Fabric, stage: Stage) -> None:
    """First the receiver stands still for a while, then the sender."""
    if node.address == A:
        for n in range(120):
            node.send(B, "x", {"n": n}, pattern(3000, n) if n % 3 == 0 else None)
    elif node.address == B:
        for n in range(120):
            message = node.receive("x", A)
            assert message.body["n"] == n
            assert n % 3 or is_pattern(message.vector, 3000, n)
            message.release()
            if n in (30, 80):
                tell(node, C, "pause")
    else:
        for who in (B, A):
            hear(node, B, "pause")
            stage.pause(who)
            node.sleep(0.1)
            stage.resume(who)


@case(A, B, needs=[Ability.CUT])
def a_partition_only_delays(node: Fabric, stage: Stage) -> None:
    """What is sent meanwhile comes after the healing, in its order."""
    if node.address == B:
        _speak_before_and_during_a_partition(node)
        return
    tell(node, B, "go")
    node.sleep(0.5)
    stage.cut(A, B)
    assert node.receive("x", B, timeout=0.0).body["n"] == 0
    node.sleep(1.0)
    assert nothing_at(node, "x")
    stage.heal(A, B)
    assert [node.receive("x", B).body["n"] for _ in range(3)] == [1, 2, 3]


@case(A, B, needs=[Ability.CUT])
def the_dead_do_not_speak_after_a_partition(node: Fabric, stage: Stage) -> None:
    """B is declared dead while it cannot be heard: what it sent meanwhile never comes."""
    if node.address == B:
        _speak_before_and_during_a_partition(node)
        return
    tell(node, B, "go")
    node.sleep(0.5)
    stage.cut(A, B)
    node.sleep(1.0)
    node.set_members(without(stage.view, B))
    stage.heal(A, B)
    assert node.receive("x", B).body["n"] == 0
    assert nothing_at(node, "x")


def _speak_before_and_during_a_partition(node: Fabric) -> None:
    hear(node, A, "go")
    node.send(A, "x", {"n": 0})
    node.sleep(1.0)
    for n in range(1, 4):
        node.send(A, "x", {"n": n})
