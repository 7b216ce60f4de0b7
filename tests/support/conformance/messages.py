"""Conformance: what arrives, in which order, and how much may be on its way."""

from __future__ import annotations

from collections import Counter

import torch

from support.conformance.stage import A, B, C, Stage, case, hear, tell, without
from unisono.fabric import CREDIT, Address, Cancelled, Fabric, Full, Gone, TensorVector, TimedOut
from unisono.fabric.api import BODY_LIMIT

_DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)


def pattern(count: int, salt: int, dtype: torch.dtype = torch.float32) -> TensorVector:
    """Values that differ from place to place, with a long odd period, and from salt to salt."""
    period = torch.arange(251).mul(7).add(salt).remainder(251)
    period = period % 2 == 0 if dtype is torch.bool else period.to(dtype)
    return TensorVector(period.repeat(count // 251 + 1)[:count])


def is_pattern(vector: object, count: int, salt: int, dtype: torch.dtype = torch.float32) -> bool:
    """Whether these are the values of ``pattern``."""
    assert isinstance(vector, TensorVector)
    expected = pattern(count, salt, dtype)
    return vector.tensor.dtype is dtype and torch.equal(vector.tensor, expected.tensor)


def is_full(node: Fabric, to: Address, port: str) -> bool:
    """Whether there is no credit; uses one if there is."""
    try:
        node.send(to, port, {}, wait=False)
    except Full:
        return True
    return False


@case(A, B, C)
def order_is_kept_for_each_sender_and_port(node: Fabric, stage: Stage) -> None:
    """Plain messages and vectors of two senders to two ports: each stream in its order."""
    rounds = 40
    if node.address != C:
        for n in range(rounds):
            node.send(C, "x", {"n": n}, pattern(n, n) if n % 5 == 0 else None)
            node.send(C, "y", {"n": n})
        return
    seen: Counter[tuple[Address, str]] = Counter()
    for _ in range(2 * rounds):
        for port in ("x", "y"):
            message = node.receive(port)
            n = seen[message.sender, port]
            assert message.body["n"] == n
            if port == "x" and n % 5 == 0:
                assert is_pattern(message.vector, n, n)
            message.release()
            seen[message.sender, port] += 1
    assert set(seen.values()) == {rounds}


@case(A, B, C)
def receiving_from_one_leaves_the_others_messages(node: Fabric, stage: Stage) -> None:
    """``receive(from_)`` passes by what others sent, and that stays in its order."""
    if node.address == B:
        for n in range(4):
            node.send(C, "x", {"n": n})
    elif node.address == A:
        hear(node, C, "go")
        for n in range(2):
            node.send(C, "x", {"n": n})
    else:
        first = node.receive("x")
        assert (first.sender, first.body["n"]) == (B, 0)
        tell(node, A, "go")
        for sender, n in ((A, 0), (B, 1), (A, 1), (B, 2), (B, 3)):
            assert node.receive("x", sender).body["n"] == n


@case(A, B, C)
def two_activities_at_one_port_get_each_its_own(node: Fabric, stage: Stage) -> None:
    """Waiting for different senders at one port."""
    if node.address != C:
        for n in range(20):
            node.send(C, "x", {"n": n})
        return

    def listen(sender: Address) -> None:
        for n in range(20):
            message = node.receive("x", sender)
            assert (message.sender, message.body["n"]) == (sender, n)
        node.post("done", {})

    node.spawn("a", lambda: listen(A))
    node.spawn("b", lambda: listen(B))
    for _ in range(2):
        node.receive("done")


@case(A, B)
def messages_wait_for_their_port(node: Fabric, stage: Stage) -> None:
    """What comes before a port is opened is not lost."""
    if node.address == A:
        node.send(B, "late", {"n": 1}, pattern(3, 1))
        tell(node, B, "sent")
    else:
        hear(node, A, "sent")
        node.port("late")
        message = node.receive("late", timeout=10)
        assert is_pattern(message.vector, 3, 1)


@case(A, B)
def the_ninth_unconsumed_message_waits(node: Fabric, stage: Stage) -> None:
    """Credit is exact, for each port; ``receive`` of a plain message gives one back."""
    if node.address == A:
        for n in range(CREDIT):
            node.send(B, "x", {"n": n})
        assert is_full(node, B, "x")
        node.send(B, "y", {}, wait=False)
        tell(node, B, "full")
        node.send(B, "x", {"n": CREDIT})
        assert is_full(node, B, "x")
        tell(node, B, "full again")
        for n in range(CREDIT + 1, 10 * CREDIT):
            node.send(B, "x", {"n": n})
    else:
        hear(node, A, "full")
        assert node.receive("x").body["n"] == 0
        hear(node, A, "full again")
        for n in range(1, 10 * CREDIT):
            assert node.receive("x").body["n"] == n
        node.receive("y")


@case(A, B)
def credit_of_a_vector_comes_back_with_its_release(node: Fabric, stage: Stage) -> None:
    """A borrowed vector counts as unconsumed."""
    if node.address == A:
        for n in range(CREDIT):
            node.send(B, "x", {"n": n}, pattern(10, n))
        tell(node, B, "full")
        hear(node, B, "borrowed")
        assert is_full(node, B, "x")
        tell(node, B, "still full")
        node.send(B, "x", {"n": CREDIT})
        assert is_full(node, B, "x")
        tell(node, B, "full again")
    else:
        hear(node, A, "full")
        first = node.receive("x")
        tell(node, A, "borrowed")
        hear(node, A, "still full")
        assert is_pattern(first.vector, 10, 0)
        first.release()
        hear(node, A, "full again")
        for n in range(1, CREDIT + 1):
            message = node.receive("x")
            assert message.body["n"] == n
            message.release()


class Enough(Exception):  # noqa: N818
    """Why a case cancels."""


@case(A, B, C)
def senders_without_credit_wait_until_one_is_declared_dead_or_cancelled(
    node: Fabric, stage: Stage
) -> None:
    """Two who only send to each other stand still, here as on every other fabric."""
    if node.address == C:
        hear(node, A, "sent")
        hear(node, B, "sent")
        node.sleep(0.05)
        tell(node, B, "declare")
        hear(node, B, "over")
        tell(node, A, "cancel")
        return
    other = B if node.address == A else A

    def end() -> None:
        if node.address == A:
            hear(node, C, "cancel")
            node.cancel(Enough())
        else:
            hear(node, C, "declare")
            node.set_members(without(stage.view, A))

    node.spawn("end", end)
    for n in range(CREDIT):
        node.send(other, "x", {"n": n})
    tell(node, C, "sent")
    try:
        node.send(other, "x", {})
    except Gone as gone:
        assert (node.address, gone.address) == (B, A)
        tell(node, C, "over")
    except Cancelled as cancelled:
        assert node.address == A and isinstance(cancelled.__cause__, Enough)
    else:
        raise AssertionError("a send without credit did not wait")


@case(A, B, C)
def vectors_arrive_intact_and_are_borrowed(node: Fabric, stage: Stage) -> None:
    """All sizes and types; the sender may overwrite at once, and use the memory's like again."""
    counts = (0, 1, 2**18)
    if node.address == A:
        for salt, dtype in enumerate(_DTYPES):
            for count in counts:
                vector = pattern(count, salt, dtype)
                node.send(B, "x", {"count": count}, vector)
                vector.tensor.zero_()
            hear(node, B, "held")
            for count in counts:
                node.send(C, "x", {"count": count}, pattern(count, salt + 100, dtype))
            hear(node, C, "got them")
            tell(node, B, "look")
        sizes = [count * dtype.itemsize for count in counts for dtype in _DTYPES]
        assert node.bytes_sent == 2 * sum(sizes)
        return
    offset = 0 if node.address == B else 100
    for salt, dtype in enumerate(_DTYPES):
        held = [node.receive("x", A) for _ in counts]
        if node.address == B:
            tell(node, A, "held")
            hear(node, A, "look")
        for message, count in zip(held, counts, strict=True):
            assert message.body["count"] == count
            assert is_pattern(message.vector, count, salt + offset, dtype)
            message.release()
        if node.address == C:
            tell(node, A, "got them")


@case(A, B)
def a_hundred_megabytes_arrive_intact(node: Fabric, stage: Stage) -> None:
    """Twice, so that memory is used again."""
    count = 25_000_000
    if node.address == A:
        vector = pattern(count, 1)
        node.send(B, "x", {}, vector)
        hear(node, B, "got it")
        vector.assign(pattern(count, 2))
        node.send(B, "x", {}, vector)
        return
    for salt in (1, 2):
        message = node.receive("x")
        assert is_pattern(message.vector, count, salt)
        message.release()
        if salt == 1:
            tell(node, A, "got it")


@case(A, B)
def bodies_are_plain_data_of_limited_size(node: Fabric, stage: Stage) -> None:
    """What is refused costs no credit; what is just small enough arrives."""
    room = BODY_LIMIT - len('{"text":""}')
    if node.address == A:
        for body in ({"x": {1}}, {"x": b"1"}, {"x": torch.zeros(1)}, {"text": "a" * (room + 1)}):
            for _ in range(CREDIT):
                try:
                    node.send(B, "x", body)
                except (TypeError, ValueError):
                    continue
                raise AssertionError("a body that cannot travel was not refused")
        for _ in range(CREDIT):
            node.send(B, "x", {"text": "a" * room}, wait=False)
    else:
        for _ in range(CREDIT):
            assert len(node.receive("x").body["text"]) == room


@case(A)
def posts_keep_their_order_and_never_block(node: Fabric, stage: Stage) -> None:
    """Far more than any credit."""
    for n in range(1000):
        node.post("x", {"n": n})
    for n in range(1000):
        message = node.receive("x", timeout=10)
        assert (message.sender, message.body["n"]) == (node.address, n)


@case(A, B)
def a_timeout_ends_a_receive(node: Fabric, stage: Stage) -> None:
    """Nothing is lost by it, and a message that is there comes before it."""
    if node.address == A:
        hear(node, B, "go")
        node.send(B, "x", {"n": 1})
        return
    began = node.now()
    for from_, timeout in ((None, 0.05), (A, 0.05), (None, 0.0)):
        try:
            node.receive("x", from_, timeout)
        except TimedOut:
            continue
        raise AssertionError("a message out of nothing")
    assert node.now() - began >= 0.1
    tell(node, A, "go")
    assert node.receive("x", timeout=30).body["n"] == 1
    node.post("x", {"n": 2})
    assert node.receive("x", timeout=0.0).body["n"] == 2
