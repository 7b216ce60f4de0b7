"""Strategies by name: ours, and those that other packages bring by entry point."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import Field, fields
from enum import Enum
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from unisono.errors import UserError
from unisono.strategies.allreduce import AllReduce
from unisono.strategies.averaging import Averaging
from unisono.strategies.base import CHOICES, IN_CODE, Strategy
from unisono.strategies.delay_by_one import DelayByOne
from unisono.strategies.elastic import Elastic
from unisono.strategies.gossip import ADPSGD, GossipFixed, GossipRandom
from unisono.strategies.server import AveragedServer, Server
from unisono.strategies.solo import Solo

GROUP = "unisono.strategies"
_OURS: dict[str, type[Strategy]] = {
    "solo": Solo,
    "allreduce": AllReduce,
    "averaging": Averaging,
    "gossip-fixed": GossipFixed,
    "gossip-random": GossipRandom,
    "adpsgd": ADPSGD,
    "delay-by-one": DelayByOne,
    "server": Server,
    "averaged-server": AveragedServer,
    "elastic": Elastic,
}


def names() -> list[str]:
    """Every strategy that can be named."""
    return sorted({*_OURS, *(e.name for e in entry_points(group=GROUP))})


def make(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy of that name; options that it does not know are refused."""
    options = dict(options or {})
    kind = find(name)
    known = {f.name: f for f in fields(kind) if IN_CODE not in f.metadata}
    for key in options:
        if key not in known:
            near = _nearest(key, sorted(known))
            raise UserError(f"strategy {name} has no option {key!r}{near}")
    hints = get_type_hints(kind)
    values = {key: _value(name, known[key], hints[key], value) for key, value in options.items()}
    return kind(**values)


def find(name: str) -> type[Strategy]:
    """The class of that name."""
    if name in _OURS:
        return _OURS[name]
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            found: type[Strategy] = entry.load()
            return found
    raise UserError(f"there is no strategy {name!r}{_nearest(name, names())}")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known) or 'none'}"


def _value(strategy: str, option: Field[Any], hint: Any, value: Any) -> Any:
    """An option as it stands in a configuration, as the dataclass wants it."""
    where = f"option {option.name!r} of strategy {strategy}"
    if CHOICES in option.metadata:
        return _choice(where, option.metadata[CHOICES], value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            choices = ", ".join(str(choice.value) for choice in hint)
            raise UserError(f"{where} is {value!r}; it can be {choices}") from None
    if isinstance(hint, type) and not isinstance(value, (hint, int) if hint is float else hint):
        raise UserError(f"{where} is {value!r}; it must be of type {hint.__name__}")
    return value


def _choice(where: str, choices: Mapping[str, type], value: Any) -> Any:
    table = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = table.pop("name", None)
    if name not in choices:
        raise UserError(f"{where} is {name!r}; it can be {', '.join(choices)}")
    unknown = set(table) - {f.name for f in fields(choices[name])}
    if unknown:
        raise UserError(f"{where}: {name} has no setting {sorted(unknown)[0]!r}")
    return choices[name](**table)
