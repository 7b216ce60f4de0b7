"""Strategies by name: ours, and those that other packages bring by entry point."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from unisono.errors import UserError
from unisono.strategies.allreduce import AllReduce
from unisono.strategies.averaging import Averaging
from unisono.strategies.base import Strategy
from unisono.strategies.delay_by_one import DelayByOne
from unisono.strategies.gossip import GossipFixed, GossipRandom
from unisono.strategies.outer_steps import OUTERS
from unisono.strategies.server import AveragedServer, Server
from unisono.strategies.solo import Solo

GROUP = "unisono.strategies"
IN_CODE = "selection"
"""An option that is an object, and has no word for it."""
_OURS: dict[str, type] = {
    "solo": Solo,
    "allreduce": AllReduce,
    "averaging": Averaging,
    "gossip-fixed": GossipFixed,
    "gossip-random": GossipRandom,
    "delay-by-one": DelayByOne,
    "server": Server,
    "averaged-server": AveragedServer,
}


def names() -> list[str]:
    """Every strategy that can be named."""
    return sorted({*_OURS, *(e.name for e in entry_points(group=GROUP))})


def make(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy of that name; options that it does not know are refused."""
    options = dict(options or {})
    kind = _find(name)
    known = {f.name for f in fields(kind)} - {IN_CODE}
    for key in options:
        if key not in known:
            near = _nearest(key, sorted(known))
            raise UserError(f"strategy {name} has no option {key!r}{near}")
    hints = get_type_hints(kind)
    values = {key: _value(name, key, hints[key], value) for key, value in options.items()}
    strategy: Strategy = kind(**values)
    return strategy


def _find(name: str) -> type:
    if name in _OURS:
        return _OURS[name]
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            found: type = entry.load()
            return found
    raise UserError(f"there is no strategy {name!r}{_nearest(name, names())}")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known) or 'none'}"


def _value(strategy: str, key: str, hint: Any, value: Any) -> Any:
    """An option as it stands in a configuration, as the dataclass wants it."""
    where = f"option {key!r} of strategy {strategy}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            choices = ", ".join(str(choice.value) for choice in hint)
            raise UserError(f"{where} is {value!r}; it can be {choices}") from None
    if key == "outer":
        return _outer(where, value)
    if isinstance(hint, type) and not isinstance(value, (hint, int) if hint is float else hint):
        raise UserError(f"{where} is {value!r}; it must be of type {hint.__name__}")
    return value


def _outer(where: str, value: Any) -> Any:
    table = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = table.pop("name", None)
    if name not in OUTERS:
        raise UserError(f"{where} is {name!r}; it can be {', '.join(OUTERS)}")
    unknown = set(table) - {f.name for f in fields(OUTERS[name])}
    if unknown:
        raise UserError(f"{where}: {name} has no setting {sorted(unknown)[0]!r}")
    return OUTERS[name](**table)
