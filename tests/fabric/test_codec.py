"""Messages survive the wire whatever is in them, and nothing else passes for one."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import random
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.coordinator import messages
from unisono.fabric import Address, Codec, Malformed, TypedPort, from_plain, learner, to_plain
from unisono.fabric.api import BODY_LIMIT, encode, encoded_size
from unisono.fabric.codec import encode_message, kinds_of
from unisono.strategies.engines import (
    collective,
    gather,
    gossip_messages,
    server_messages,
    state_transfer,
    sync_rounds,
)

PORTS: list[TypedPort[Any]] = [
    messages.PORT,
    messages.CONTROL,
    messages.reply_port("answers"),
    collective.PORT,
    gather.SHOWN,
    gossip_messages.PORT,
    server_messages.PORT,
    server_messages.SHOWN,
    server_messages.FINAL,
    state_transfer.PORT,
    sync_rounds.PORT,
    sync_rounds.RESULTS,
]
WIRE = {kind for port in PORTS for kind in port.kinds.values()}
INSIDE = {messages.Command, *typing.get_args(messages.Operation), *typing.get_args(messages.Answer)}
ALL = sorted(WIRE | INSIDE, key=lambda kind: kind.__qualname__)
ADDRESSES = st.builds(
    Address, st.sampled_from(["learner", "coordinator"]), *[st.integers(0, 9)] * 3
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type, by the type alone."""
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**62), 2**62),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
        bool: st.booleans(),
        type(None): st.none(),
        Any: PLAIN,
        Address: ADDRESSES,
    }
    if kind in simple:
        return simple[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(values, arguments))
    if origin is dict:
        return st.dictionaries(*map(values, arguments), max_size=3)
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return st.lists(values(arguments[0]), max_size=3).map(origin)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    hints = typing.get_type_hints(kind)
    if issubclass(kind, tuple):
        return st.builds(kind, *map(values, hints.values()))
    fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
    return st.builds(kind, **fields)


def travel(message: Any) -> Any:
    """As plain data over the wire."""
    return json.loads(json.dumps(encode_message(message), separators=(",", ":")))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_message_survives_the_wire(kind: type, data: st.DataObject) -> None:
    message = data.draw(values(kind))
    assert Codec[Any](kind).decode(travel(message)) == message


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_the_size_of_every_message_is_known_without_encoding_it(
    kind: type, data: st.DataObject
) -> None:
    message = data.draw(values(kind))
    assert encoded_size(message) == len(encode(message))


@pytest.mark.parametrize("inside", [{1}, b"x", object(), [0.5, {2}], {(1, 2): 3}])
def test_what_cannot_be_encoded_has_no_size(inside: Any) -> None:
    for refuses in (encode, encoded_size):
        with pytest.raises(TypeError):
            refuses(messages.Event("x", {"field": inside}))
        with pytest.raises(TypeError):
            refuses(messages.StateReceived(inside))


def test_the_size_is_limited_as_the_encoding_is() -> None:
    long = messages.Event("x", {"field": "y" * BODY_LIMIT})
    for refuses in (encode, encoded_size):
        with pytest.raises(ValueError, match="a message body of"):
            refuses(long)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 1e300, True, 2**70])
def test_the_size_of_odd_numbers(number: float) -> None:
    message = messages.Event("x", {"field": number, "more": [number]})
    assert encoded_size(message) == len(encode(message))


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Everything inside of plain data."""
    found = [path]
    if isinstance(plain, dict | list):
        inner = plain.items() if isinstance(plain, dict) else enumerate(plain)
        for key, value in inner:
            found += places(value, (*path, key))
    return found


JUNK = [None, True, -1, 0.5, 1e400, "", "learner-1", "learner-01.0#0", [], [1], [[1, 2], [3]], {}]
JUNK += [{"kind": "nonsense"}, {"kind": ["a"]}, {"": 0}, 2**70, "x" * 1000]


def mutate(plain: Any, source: random.Random) -> Any:
    """The message with one thing changed, left out or added."""
    path = source.choice(places(plain))
    if not path:
        return source.choice(JUNK)
    inside = plain
    for key in path[:-1]:
        inside = inside[key]
    what = source.choice(["change", "remove", "add"])
    if what == "change":
        inside[path[-1]] = source.choice(JUNK)
    elif what == "remove":
        del inside[path[-1]]
    elif isinstance(inside, dict):
        inside[source.choice(["kind", "extra", "notes", "0"])] = source.choice(JUNK)
    else:
        inside.append(source.choice(JUNK))
    return plain


@settings(max_examples=400, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_what_is_not_a_message_is_malformed_and_nothing_worse(
    data: st.DataObject, seed: int
) -> None:
    """A change that leaves a message is read as just that: written again, it is the same."""
    port = data.draw(st.sampled_from(PORTS))
    kind = data.draw(st.sampled_from(sorted(port.kinds.values(), key=lambda k: k.__name__)))
    plain = mutate(travel(data.draw(values(kind))), random.Random(seed))
    try:
        message = port.read(plain)
    except Malformed as error:
        assert "\n" not in str(error)
        return
    assert port.read(travel(message)) == message


def test_mutations_are_mostly_malformed() -> None:
    """So that the test above has something to find."""
    source, refused = random.Random(0), 0
    ask = gossip_messages.Ask({learner(0): ((0, 5), (7, 9)), learner(1): ()})
    for _ in range(300):
        try:
            gossip_messages.PORT.read(mutate(travel(ask), source))
        except Malformed:
            refused += 1
    assert refused > 200


@dataclass(frozen=True)
class Sample:
    """With a default."""

    number: int
    name: str = ""


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ({"number": 1, "name": 2}, "name: not str: 2"),
        ({"number": True}, "number: not int: True"),
        ({"number": 1.0}, "number: not int"),
        ({}, "no number"),
        ({"number": 1, "nmae": "x"}, "an unknown field: 'nmae'"),
        ([1], "not an object"),
    ],
)
def test_it_says_what_is_wrong(plain: Any, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        from_plain(Sample, plain)


def test_defaults_are_left_out() -> None:
    assert to_plain(Sample(1)) == {"number": 1}
    assert from_plain(Sample, {"number": 1}) == Sample(1)


def test_what_a_node_posts_to_itself_is_no_message_of_others() -> None:
    """A tick comes as it is; over the wire nobody can send one."""
    assert gossip_messages.PORT.read(gossip_messages.Tick()) == gossip_messages.Tick()
    with pytest.raises(Malformed, match="unknown kind"):
        gossip_messages.PORT.read(encode_message(gossip_messages.Tick()))


def test_types_that_cannot_be_told_apart_are_refused() -> None:
    same = dataclass(frozen=True)(type("Sample", (), {"__annotations__": {}}))
    with pytest.raises(TypeError, match="the same name"):
        kinds_of(typing.Union[Sample, same])  # noqa: UP007
