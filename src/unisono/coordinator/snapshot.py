"""The coordinator's whole state as plain data, so that a journal need not hold all operations."""

from __future__ import annotations

import dataclasses
from collections import deque
from enum import Enum
from types import ModuleType
from typing import Any

from unisono.coordinator import (
    checkpoints,
    delivery,
    departed,
    directives,
    dynamic_sharding,
    job,
    messages,
    output,
    pace,
    state,
    static_sharding,
    sync_rounds,
)
from unisono.coordinator.journal import Journal
from unisono.coordinator.state import State
from unisono.errors import Cause
from unisono.fabric.address import Address, Addresses
from unisono.fabric.api import Member, View
from unisono.pool import pool
from unisono.pool.ranges import RangeSet

_RUN = "_run"
"""Where a part of the state refers to the whole."""


def _classes(module: ModuleType) -> dict[str, type]:
    found = vars(module).items()
    return {n: k for n, k in found if isinstance(k, type) and k.__module__ == module.__name__}


_KINDS: dict[str, type] = {"Addresses": Addresses, "Cause": Cause, "Member": Member, "View": View}
for _module in (
    checkpoints,
    delivery,
    departed,
    directives,
    dynamic_sharding,
    job,
    messages,
    output,
    pace,
    pool,
    state,
    static_sharding,
    sync_rounds,
):
    _KINDS |= _classes(_module)


def freeze(whole: State) -> Any:
    """The state as plain data; ``thaw`` makes an equal one of it."""
    return _Freezer().write(whole)


def thaw(plain: Any) -> State:
    """The inverse of ``freeze``."""
    found = _Thawer().read(plain)
    assert isinstance(found, State)
    for part in vars(found).values():
        if isinstance(part, static_sharding.StaticSharding | dynamic_sharding.DynamicSharding):
            vars(part)[_RUN] = found
    return found


def recover(journal: Journal, expected: int) -> State:
    """The state that a journal leads to; where it is empty, that of a run that begins."""
    found = State(expected) if journal.snapshot is None else thaw(journal.snapshot)
    for command in journal.replay():
        found.apply(command)
    return found


class _Freezer:
    """Writes values as lists that begin with what they are; what is held twice is written once."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[int, Any]] = {}

    def write(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Address):
            return ["address", str(value)]
        if isinstance(value, Enum):
            return ["enum", type(value).__name__, value.value]
        if isinstance(value, RangeSet):
            return ["ranges", [list(pair) for pair in value]]
        if isinstance(value, dict):
            return ["dict", [[self.write(k), self.write(v)] for k, v in value.items()]]
        for kind in (list, set, deque):
            if isinstance(value, kind):
                return [kind.__name__, [self.write(v) for v in value]]
        if id(value) in self._written:
            return ["again", self._written[id(value)][0]]
        plain: list[Any]
        if isinstance(value, tuple):
            plain = [type(value).__name__, [self.write(v) for v in value]]
        else:
            plain = ["object", type(value).__name__, self._fields(value)]
        if isinstance(value, tuple) or _is_frozen(value):
            # The value is kept, so that its id stays its own.
            self._written[id(value)] = len(self._written), value
            plain.insert(0, "fixed")
        return plain

    def _fields(self, value: Any) -> dict[str, Any]:
        fields = [f.name for f in dataclasses.fields(value)] if _is_frozen(value) else None
        names = vars(value) if fields is None else fields
        return {name: self.write(getattr(value, name)) for name in names if name != _RUN}


class _Thawer:
    def __init__(self) -> None:
        self._read: list[Any] = []

    def read(self, plain: Any) -> Any:
        if not isinstance(plain, list):
            return plain
        kind, *rest = plain
        if kind == "again":
            return self._read[rest[0]]
        if kind == "fixed":
            value = self.read(rest)
            self._read.append(value)
            return value
        if kind == "address":
            return Address.parse(rest[0])
        if kind == "enum":
            return _KINDS[rest[0]](rest[1])
        if kind == "ranges":
            return RangeSet(rest[0])
        if kind == "dict":
            return {self.read(k): self.read(v) for k, v in rest[0]}
        if kind == "object":
            made: Any = object.__new__(_KINDS[rest[0]])
            vars(made).update({name: self.read(v) for name, v in rest[1].items()})
            return made
        items = [self.read(v) for v in rest[0]]
        plain_kinds: dict[str, Any] = {"list": list, "set": set, "deque": deque, "tuple": tuple}
        if kind in plain_kinds:
            return plain_kinds[kind](items)
        found: Any = _KINDS[kind]
        return found(items) if found is Addresses else found(*items)


def _is_frozen(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen  # type: ignore[attr-defined, union-attr, unused-ignore]
