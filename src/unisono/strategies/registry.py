"""Strategies by name: built in, and of other packages, by entry point."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from unisono.errors import UserError
from unisono.strategies.allreduce import AllReduce
from unisono.strategies.averaging import Averaging
from unisono.strategies.base import Strategy
from unisono.strategies.delay_by_one import DelayByOne
from unisono.strategies.elastic import Elastic
from unisono.strategies.gossip import ADPSGD, GossipFixed, GossipRandom
from unisono.strategies.options import IN_CODE, checked_option
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
    """The names of all strategies."""
    return sorted({*_OURS, *(e.name for e in entry_points(group=GROUP))})


def make(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy of that name; raises ``UserError`` for options that it does not have."""
    options = dict(options or {})
    kind = find(name)
    known = {f.name: f for f in fields(kind) if IN_CODE not in f.metadata}
    for key in options:
        if key not in known:
            near = _nearest(key, sorted(known))
            raise UserError(f"strategy {name} has no option {key!r}{near}")
    values = {key: checked_option(kind, known[key], value) for key, value in options.items()}
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
