"""Addresses, views, bodies, vectors and ports, each by itself."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unisono.fabric import (
    COORDINATOR,
    Address,
    Addresses,
    Gone,
    Member,
    Message,
    TimedOut,
    View,
    from_plain,
    learner,
    server,
    to_plain,
)
from unisono.fabric.api import BODY_LIMIT, encode
from unisono.fabric.local.ports import Port
from unisono.fabric.vector import SizeVector, TensorVector


def test_addresses_read_back_and_sort_by_role_number_part() -> None:
    addresses = [learner(10), learner(2), Address("shard", 1, 3, 2), COORDINATOR, learner(2, 1)]
    assert [Address.parse(str(address)) for address in addresses] == addresses
    assert sorted(addresses) == [
        COORDINATOR,
        learner(2),
        learner(2, 1),
        learner(10),
        Address("shard", 1, 3, 2),
    ]
    assert learner(2).next_incarnation() == learner(2, 1) != learner(2)
    assert (COORDINATOR.name, learner(3).name) == ("coordinator", "learner 3")


@pytest.mark.parametrize(
    "text", ["", "learner", "learner-1", "learner-1.0", "learner-1.0#-1", "L-1.0#0 "]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        Address.parse(text)


def test_views_travel_as_plain_data() -> None:
    addresses = [server(4), learner(11), learner(2), COORDINATOR]
    view = View(7, tuple(Member(address, "unix:a") for address in addresses))
    assert from_plain(View, json.loads(json.dumps(to_plain(view)))) == view
    assert view.addresses() == (learner(2), learner(11), server(4))
    assert view.addresses().learners == (learner(2), learner(11))
    assert view.addresses().servers == (server(4),)


members = st.sets(st.integers(0, 8)).map(lambda found: [Member(learner(n), "e") for n in found])


@given(members, st.randoms(use_true_random=False), members)
def test_views_follow_from_changes(old: list[Member], source: Any, new: list[Member]) -> None:
    """As from comparing all members, in whatever way a view came to be."""
    before = View(3, tuple(old))
    gone = [m.address for m in old if m not in new]
    joined = [m for m in new if m not in old]
    source.shuffle(gone)
    source.shuffle(joined)
    after = before.after(7, tuple(joined), tuple(gone))
    assert after == View(7, tuple(sorted(new)))
    assert after.addresses() == View(7, tuple(new)).addresses()
    assert after.changes_since(before) == (tuple(sorted(gone)), tuple(sorted(joined)))
    assert View(7, tuple(new)).changes_since(View(3, tuple(old))) == after.changes_since(before)
    # Nodes of a process that share a view share the next one, but none that is another.
    assert before.after(7, tuple(joined), tuple(gone)) is after
    other = before.after(8, tuple(joined), tuple(gone))
    assert other == View(8, after.members) and before.after(8, (), ()).members == tuple(sorted(old))


def test_equal_views_are_shared_and_no_others() -> None:
    one, same = (View(987, (Member(learner(1), "here"),)) for _ in range(2))
    other = View(987, (Member(learner(1), "there"),))
    assert one.shared() is one and same.shared() is one and other.shared() is other


def test_addresses_know_the_place_of_each() -> None:
    found = Addresses([learner(11), learner(2), learner(2, incarnation=1)])
    assert list(found) == [learner(2), learner(2, 1), learner(11)]
    assert [found.index(address) for address in found] == [0, 1, 2]
    assert learner(2, 1) in found and learner(3) not in found
    with pytest.raises(ValueError, match="learner-3"):
        found.index(learner(3))


def test_a_body_at_the_limit_is_the_last_that_is_accepted() -> None:
    room = BODY_LIMIT - len('{"x":""}')
    assert len(encode({"x": "a" * room})) == BODY_LIMIT
    with pytest.raises(ValueError, match="at most"):
        encode({"x": "a" * (room + 1)})
    with pytest.raises(TypeError):
        encode({"x": torch.zeros(1)})


def test_releasing_is_done_once_and_voids_the_vector() -> None:
    released: list[int] = []
    message = Message(learner(0), {}, TensorVector.zeros(1), lambda: released.append(1))
    message.release()
    message.release()
    assert released == [1]
    assert message.vector is None


def test_vectors_compute_as_written() -> None:
    a = TensorVector(torch.tensor([1.0, 2.0, 3.0]))
    b = TensorVector(torch.tensor([10.0, 20.0, 30.0]))
    c = a.copy()
    c.add(b, 0.5)
    assert c.tensor.tolist() == [6.0, 12.0, 18.0]
    c.scale(2.0)
    c.difference(c, a)
    assert c.tensor.tolist() == [11.0, 22.0, 33.0]
    c.slice(1, 3).assign(TensorVector(torch.zeros(2)))
    assert c.tensor.tolist() == [11.0, 0.0, 0.0]
    assert (len(c), c.nbytes, len(c.like())) == (3, 12, 3)
    assert a.tensor.tolist() == [1.0, 2.0, 3.0]


def test_vectors_are_equal_by_their_bytes() -> None:
    vector = TensorVector(torch.tensor([0.0, 1.0, float("nan")]))
    same = vector.copy()
    assert vector.equals(same) and vector.digest() == same.digest()
    for other in ([-0.0, 1.0, float("nan")], [0.0, 1.0], [0.0, 1.0, 2.0]):
        different = TensorVector(torch.tensor(other))
        assert not vector.equals(different) and vector.digest() != different.digest()
    assert len(vector.digest()) == 32


def test_sizes_begin_alike_and_are_never_known_to_be_equal() -> None:
    assert SizeVector(7).digest() == SizeVector(7).digest() != SizeVector(8).digest()
    assert not SizeVector(7).equals(SizeVector(7))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_not_finite_is_seen(value: float) -> None:
    vector = TensorVector.zeros(1000)
    assert vector.finite()
    vector.tensor[613] = value
    assert not vector.finite()


def test_sizes_follow_slices_as_tensors_do() -> None:
    for start, stop in ((0, 10), (3, 7), (5, 5), (8, 20)):
        size, tensor = (
            SizeVector(10, 4).slice(start, stop),
            TensorVector.zeros(10).slice(start, stop),
        )
        assert (len(size), size.nbytes) == (len(tensor), tensor.nbytes)
    assert SizeVector(10, 8).copy().nbytes == 80


def test_a_port_gives_what_came_before_a_death_and_then_says_gone() -> None:
    port = Port()
    port.put(Message(learner(0), {"n": 0}))
    port.put(Message(learner(1), {"n": 1}))
    dead = {learner(1)}
    take = lambda from_: port.take(from_, 0.0, dead.__contains__, lambda: None)  # noqa: E731
    assert take(learner(1)).body["n"] == 1
    with pytest.raises(Gone):
        take(learner(1))
    assert take(None).body["n"] == 0
    with pytest.raises(TimedOut):
        take(None)


def test_a_waiting_thread_gets_its_own_message_only() -> None:
    port = Port()
    got: dict[Address, int] = {}

    def wait(sender: Address) -> None:
        got[sender] = port.take(sender, 10.0, lambda _: False, lambda: None).body["n"]

    threads = [threading.Thread(target=wait, args=(learner(n),)) for n in range(5)]
    for thread in threads:
        thread.start()
    for n in (3, 1, 4, 0, 2):
        port.put(Message(learner(n), {"n": n}))
    for thread in threads:
        thread.join(60)
    assert got == {learner(n): n for n in range(5)}


def test_a_member_that_joins_again_is_a_member_once() -> None:
    here, there = (Member(learner(1), endpoint) for endpoint in ("here", "there"))
    before = View(3, (Member(learner(0), "e"), here))
    again = before.after(4, (there,), ())
    assert again.members == (Member(learner(0), "e"), there)
    assert again.addresses() == (learner(0), learner(1))
    assert again.after(5, (), (learner(1),)).addresses() == (learner(0),)
