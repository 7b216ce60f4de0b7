"""Dataclasses as plain data and back, derived from the types of their fields.

A message is an object of JSON: ``kind``, which follows from the name of its class, and its fields;
one that has its default is left out. Supported are int, float, str, bool, None, lists, tuples,
dicts, enums, addresses, named tuples, dataclasses, and unions of these that can be told apart;
``Any`` is plain data that passes as it is. Reading is strict: whatever is not exactly a message of
the expected types is ``Malformed``.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from unisono.fabric.address import Address

T = TypeVar("T")
JSON = json.JSONEncoder(separators=(",", ":"))
"""What messages are encoded with."""
KIND = "kind"


class Malformed(ValueError):  # noqa: N818
    """Data that is not a message of the expected types; the text says where and why."""


class _Form(NamedTuple):
    """How the values of a type are written and read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    size: Callable[[Any], int]
    """Characters of JSON in what is written."""
    is_fixed: bool = True
    """Whether they cannot change, so that who has one may share it."""


class TypedPort(Generic[T]):
    """A port whose messages have types.

    ``wire`` is the dataclass, or the union of dataclasses, that other nodes may send; what the node
    itself posts, the fabric's notices included, comes as it is.
    """

    def __init__(self, name: str, wire: Any = None) -> None:
        self.name = name
        self.kinds = kinds_of(wire)
        self._types = frozenset(self.kinds.values())

    def accepts(self, kind: type) -> bool:
        """Whether other nodes may send messages of that type."""
        return kind in self._types

    def read(self, body: Any) -> T:
        """The message; raises ``Malformed``."""
        if is_message(body):
            return typing.cast("T", body)  # posted here: nothing that travels is an instance
        return typing.cast("T", _read_tagged(self.kinds, body))


class Codec(Generic[T]):
    """Messages of one or several dataclasses, where they are not sent but kept."""

    def __init__(self, wire: Any) -> None:
        self.kinds = kinds_of(wire)

    def encode(self, message: T) -> dict[str, Any]:
        return encode_message(message)

    def decode(self, plain: Any) -> T:
        return typing.cast("T", _read_tagged(self.kinds, plain))


def encode_message(message: Any) -> dict[str, Any]:
    """A dataclass as plain data, with its kind."""
    return {KIND: tag_of(type(message)), **_form(type(message)).write(message)}


def size_of_message(message: Any) -> int:
    """The characters of JSON in ``encode_message``, without making it."""
    kind = type(message)
    return _with_kind(_form(kind).size(message), kind)


def is_message(body: Any) -> bool:
    """Whether it is an instance of a dataclass."""
    return hasattr(type(body), "__dataclass_fields__")


def is_fixed(kind: Any) -> bool:
    """Whether the values of a type of messages cannot change, so that nobody needs a copy."""
    return _form(kind).is_fixed


def to_plain(value: Any) -> dict[str, Any]:
    """A dataclass as plain data, for a place where no other can be."""
    plain: dict[str, Any] = _form(type(value)).write(value)
    return plain


def from_plain(kind: type[T], plain: Any) -> T:
    """The inverse of ``to_plain``; raises ``Malformed``."""
    return typing.cast("T", _form(kind).read(plain))


def tag_of(kind: Any) -> str:
    """The kind of a message: ``copies-wanted`` for ``CopiesWanted``."""
    return _tag(kind.__name__)


@cache
def _kind_size(kind: Any) -> int:
    return len(f'"{KIND}":"{tag_of(kind)}"')


def _with_kind(size: int, kind: Any) -> int:
    """The size of an object with its kind, which comes first."""
    return size + _kind_size(kind) + (size > len("{}"))


@cache
def _tag(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def kinds_of(wire: Any) -> dict[str, type]:
    """The dataclasses of a union, by their tags."""
    found = () if wire is None else _members(wire)
    kinds = {tag_of(kind): kind for kind in found}
    if len(kinds) < len(found):
        raise TypeError(f"two messages of one port have the same name: {found}")
    return kinds


def _members(kind: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return typing.get_args(kind) if is_union else (kind,)


def _read_tagged(kinds: Mapping[str, Any], plain: Any) -> Any:
    if not isinstance(plain, dict) or KIND not in plain:
        raise Malformed(f"not a message with a kind: {_short(plain)}")
    tag = plain[KIND]
    kind = kinds.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise Malformed(f"an unknown kind of message: {_short(tag)}")
    try:
        return _form(kind).read({name: v for name, v in plain.items() if name != KIND})
    except Malformed as error:
        raise Malformed(f"{tag}: {error}") from None


def _form(kind: Any) -> _Form:
    """The form of a type, which is derived once."""
    form = _forms.get(kind)
    if form is None:
        form = _forms[kind] = _derive(kind)
    return form


_forms: dict[Any, _Form] = {}


def _derive(kind: Any) -> _Form:
    if kind is Any:
        return _Form(_same, _same, plain_size, is_fixed=False)
    if kind is float:
        return _Form(_same, _read_float, plain_size)
    if kind is int:
        return _Form(
            _same, lambda plain: plain if type(plain) is int else _wrong(int, plain), _int_size
        )
    if kind in (str, bool, type(None)):
        read = lambda plain: plain if type(plain) is kind else _wrong(kind, plain)  # noqa: E731
        return _Form(_same, read, plain_size)
    if kind is Address:
        return _Form(str, _read_address, _address_size)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _union_form(arguments)
    if origin is dict or origin is Mapping:
        return _dict_form(*arguments)
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return _sequence_form(origin, _form(arguments[0]))
    if origin is tuple:
        return _tuple_form(tuple, tuple(_form(argument) for argument in arguments))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _Form(
            lambda value: value.value,
            lambda plain: _read_enum(kind, plain),
            lambda value: plain_size(value.value),
        )
    if isinstance(kind, type) and issubclass(kind, tuple):
        hints = typing.get_type_hints(kind)
        return _tuple_form(lambda items: kind(*items), tuple(map(_form, hints.values())))
    if dataclasses.is_dataclass(kind):
        return _dataclass_form(kind)
    raise TypeError(f"{kind} cannot be part of a message")


def _same(value: Any) -> Any:
    return value


def plain_size(value: Any) -> int:
    """The characters of JSON in plain data; raises what ``json`` does if it is something else."""
    kind = type(value)
    if kind is int:
        return len(repr(value))
    if kind is str:
        return _text_size(value)
    if kind is float and value - value == 0.0:
        return len(repr(value))
    if kind is dict and all(type(key) is str for key in value):
        return sum([_text_size(k) + plain_size(v) + 2 for k, v in value.items()]) + _ends(value)
    return len(JSON.encode(value))


def _int_size(value: Any) -> int:
    return len(repr(value)) if type(value) is int else plain_size(value)


def _pair_size(value: Any) -> int:
    """Of two integers: most of what messages hold are ranges."""
    first, second = value
    if type(first) is int and type(second) is int:
        return len(f"[{first},{second}]")
    return _int_size(first) + _int_size(second) + len("[,]")


def _ends(plain: Mapping[Any, Any]) -> int:
    """The braces of an object, less the comma that its last member does not have."""
    return 1 if plain else 2


@lru_cache(maxsize=65536)
def _address_size(address: Address) -> int:
    return len(str(address)) + 2


@lru_cache(maxsize=4096)
def _text_size(text: str) -> int:
    return len(JSON.encode(text))


def _wrong(kind: Any, plain: Any) -> Any:
    raise Malformed(f"not {getattr(kind, '__name__', kind)}: {_short(plain)}")


def _short(plain: Any) -> str:
    text = repr(plain)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read_float(plain: Any) -> float:
    if type(plain) is float:
        return plain
    if type(plain) is int and abs(plain) < 2**53:
        return float(plain)
    return float(_wrong(float, plain))


def _read_address(plain: Any) -> Address:
    try:
        address = Address.parse(plain)
    except (TypeError, ValueError):
        return typing.cast("Address", _wrong(Address, plain))
    return address if str(address) == plain else _wrong(Address, plain)


def _read_enum(kind: type[enum.Enum], plain: Any) -> Any:
    for member in kind:
        if type(member.value) is type(plain) and member.value == plain:
            return member
    return _wrong(kind, plain)


def _sequence_form(make: Callable[[Any], Any], item: _Form) -> _Form:
    def read(plain: Any) -> Any:
        if not isinstance(plain, list):
            _wrong(list, plain)
        return make([item.read(value) for value in plain])

    return _Form(
        lambda value: [item.write(each) for each in value],
        read,
        lambda value: sum(map(item.size, value)) + (len(value) or 1) + 1,
        item.is_fixed and make is tuple,
    )


def _tuple_form(make: Callable[[Any], Any], items: tuple[_Form, ...]) -> _Form:
    def read(plain: Any) -> Any:
        if not isinstance(plain, list) or len(plain) != len(items):
            _wrong(f"a list of {len(items)}", plain)
        return make([item.read(value) for item, value in zip(items, plain, strict=True)])

    sizes = [item.size for item in items]

    def size(value: Any) -> int:
        return sum([s(v) for s, v in zip(sizes, value, strict=True)]) + len(items) + 1

    return _Form(
        lambda value: [item.write(each) for item, each in zip(items, value, strict=True)],
        read,
        _pair_size if sizes == [_int_size, _int_size] else size,
        all(item.is_fixed for item in items),
    )


def _dict_form(key: Any, value: Any) -> _Form:
    """The keys of JSON are text; those of other types are their text, in one way only."""
    form = _form(value)

    def read_key(text: str) -> Any:
        if key is Address:
            return _read_address(text)
        if key is int:
            return int(text) if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text) else _wrong(int, text)
        return text

    def read(plain: Any) -> Any:
        if not isinstance(plain, dict):
            _wrong(dict, plain)
        return {read_key(name): form.read(each) for name, each in plain.items()}

    size, key_size = (
        form.size,
        _address_size if key is Address else lambda key: _text_size(str(key)),
    )
    return _Form(
        lambda value: {str(k): form.write(v) for k, v in value.items()},
        read,
        lambda value: sum([key_size(k) + size(v) + 2 for k, v in value.items()]) + _ends(value),
        is_fixed=False,
    )


def _union_form(members: tuple[Any, ...]) -> _Form:
    """None, dataclasses by their kind, and at most one other type."""
    kinds: dict[str, Any] = {tag_of(m): m for m in members if dataclasses.is_dataclass(m)}
    others = [m for m in members if m is not type(None) and not dataclasses.is_dataclass(m)]
    nullable, alone = type(None) in members, len(kinds) == 1 and not others
    if len(others) > 1:
        raise TypeError(f"{members} cannot be told apart")

    def write(value: Any) -> Any:
        if value is None and nullable:
            return None
        if kinds and is_message(value):
            return to_plain(value) if alone else encode_message(value)
        return _form(others[0]).write(value)

    def read(plain: Any) -> Any:
        if plain is None and nullable:
            return None
        if others and not (kinds and isinstance(plain, dict)):
            return _form(others[0]).read(plain)
        if alone:
            return _form(next(iter(kinds.values()))).read(plain)
        return _read_tagged(kinds, plain)

    def size(value: Any) -> int:
        if value is None and nullable:
            return len("null")
        kind = type(value)
        if kinds and is_message(value):
            fields = _form(kind).size(value)
            return fields if alone else _with_kind(fields, kind)
        return _form(others[0]).size(value)

    return _Form(write, read, size, all(_form(member).is_fixed for member in members))


def _dataclass_form(kind: Any) -> _Form:
    hints = typing.get_type_hints(kind)
    fields = {field.name: (field, _form(hints[field.name])) for field in dataclasses.fields(kind)}
    if KIND in fields:
        raise TypeError(f"{kind} has a field of the name {KIND!r}")

    written = [
        (name, _default_of(field), None if form.write is _same else form.write)
        for name, (field, form) in fields.items()
    ]

    def write(message: Any) -> dict[str, Any]:
        plain = {}
        for name, default, write_value in written:
            value = getattr(message, name)
            if type(value) is not type(default) or value != default:
                plain[name] = value if write_value is None else write_value(value)
        return plain

    def read(plain: Any) -> Any:
        if not isinstance(plain, dict):
            _wrong("an object", plain)
        values = {}
        for name, value in plain.items():
            if name not in fields:
                raise Malformed(f"an unknown field: {_short(name)}")
            try:
                values[name] = fields[name][1].read(value)
            except Malformed as error:
                raise Malformed(f"{name}: {error}") from None
        missing = [n for n, (field, _) in fields.items() if n not in plain and _is_needed(field)]
        if missing:
            raise Malformed(f"no {missing[0]}")
        try:
            return kind(**values)
        except ValueError as error:
            raise Malformed(str(error)) from None

    sized = [
        (name, _default_of(field), len(f',"{name}":'), form.size)
        for name, (field, form) in fields.items()
    ]

    def size(message: Any) -> int:
        total = 1
        for name, default, name_size, size_of in sized:
            value = getattr(message, name)
            if type(value) is not type(default) or value != default:
                total += name_size + size_of(value)
        return max(total, len("{}"))

    is_frozen = kind.__dataclass_params__.frozen
    return _Form(write, read, size, is_frozen and all(f.is_fixed for _, f in fields.values()))


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default_of(field: dataclasses.Field[Any]) -> Any:
    """What is left out; ``MISSING``: nothing is."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
