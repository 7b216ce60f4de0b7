"""Messages that cannot change are not copied, and nobody can tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from unisono.fabric import TypedPort, learner
from unisono.fabric.api import MembersChanged, Rejected, encode
from unisono.fabric.codec import is_fixed
from unisono.fabric.simulated.kernel import Kernel
from unisono.fabric.simulated.node import SimulatedNode


@dataclass(frozen=True)
class Fixed:
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Loose:
    notes: dict[str, tuple[int, ...]]


@dataclass
class Changing:
    number: int


@dataclass(frozen=True)
class Nested:
    inner: Changing | Fixed


EXPECTED: TypedPort[Fixed | Loose] = TypedPort("expected", Fixed | Loose)
OTHER: TypedPort[Loose | MembersChanged | Rejected] = TypedPort("other", Loose)


@pytest.mark.parametrize(
    ("kind", "fixed"),
    [(Fixed, True), (Loose, False), (Changing, False), (Nested, False), (MembersChanged, True)],
)
def test_what_is_fixed_follows_from_the_types(kind: type, fixed: bool) -> None:
    assert is_fixed(kind) is fixed


def test_a_message_that_changes_is_encoded_as_it_is_when_it_is_sent() -> None:
    notes: dict[str, tuple[int, ...]] = {"a": (1,)}
    message = Loose(notes)
    first = encode(message)
    notes["b"] = ()
    assert encode(message) != first
    fixed = Fixed((1, 2))
    assert encode(fixed) == encode(Fixed((1, 2))) == b'{"kind":"fixed","numbers":[1,2]}'
    assert encode(fixed) is encode(fixed)


def exchange(body: Any, port: TypedPort[Any] | str, *, numerics: bool = True) -> list[Any]:
    """What comes at a port, and what is said there of malformed messages."""
    kernel = Kernel(numerics=numerics)
    one, other = SimulatedNode(kernel, learner(0)), SimulatedNode(kernel, learner(1))
    other.port(port, members=True)
    found: list[Any] = []

    def receive() -> None:
        found.append(other.receive(port).body)

    kernel.main(other, receive)
    kernel.main(one, lambda: one.send(other.address, getattr(port, "name", port), body))
    kernel.run()
    return found


@pytest.mark.parametrize("numerics", [True, False])
def test_a_typed_port_gets_what_it_expects(numerics: bool) -> None:
    assert exchange(Fixed((3,)), EXPECTED, numerics=numerics) == [Fixed((3,))]
    assert exchange(Loose({"a": (1,)}), EXPECTED, numerics=numerics) == [Loose({"a": (1,)})]


def test_what_can_be_changed_is_copied() -> None:
    sent = Loose({"a": (1,)})
    [found] = exchange(sent, EXPECTED)
    assert found == sent and found.notes is not sent.notes


@pytest.mark.parametrize("numerics", [True, False])
def test_a_port_without_types_gets_plain_data(numerics: bool) -> None:
    assert exchange(Fixed((3,)), "plain", numerics=numerics) == [{"kind": "fixed", "numbers": [3]}]


@pytest.mark.parametrize("numerics", [True, False])
def test_a_message_of_another_port_is_malformed(numerics: bool) -> None:
    [found] = exchange(Fixed((3,)), OTHER, numerics=numerics)
    assert isinstance(found, Rejected) and "fixed" in found.why
