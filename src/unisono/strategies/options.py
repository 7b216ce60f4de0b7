"""Checks the options of a strategy, from a configuration or from code."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import Field, fields
from enum import Enum
from functools import lru_cache
from typing import Any, get_type_hints

from unisono.errors import UserError

UNIT, CHOICES, IN_CODE = "unit", "choices", "in_code"
EXAMPLES = {UNIT: "examples"}
"""Metadata of an option that counts examples: ``every: int = field(default=N, metadata=EXAMPLES)``.

A configuration counts frames. For a model whose examples are chunks of frames such options, of any
strategy, are divided by the frames of a chunk (``Strategy.in_chunks_of``).
"""
CODE_ONLY = {IN_CODE: True}
"""Metadata of an option that is an object, and can only be set in Python."""

_MOST_SHARDS = 1024
"""A push is a message to each, and one message tells who holds them all."""


def check_shards(shards: int) -> None:
    """Whether a model can lie in so many shards; raises ``UserError``."""
    if not 1 <= shards <= _MOST_SHARDS:
        raise UserError(f"shards is {shards}: it must be from 1 to {_MOST_SHARDS}")


def checked_option(kind: type, option: Field[Any], value: Any) -> Any:
    """Converts the value of a field of a strategy's class: ``"static"`` to ``Sharding.STATIC``.

    Raises:
        UserError: the option cannot have this value.
    """
    if IN_CODE in option.metadata:
        return value
    where = f"option {option.name!r} of strategy {getattr(kind, 'name', kind.__name__)}"
    if CHOICES in option.metadata:
        return _choice(where, option.metadata[CHOICES], value)
    hint = _hints(kind).get(option.name)
    if not isinstance(hint, type):
        return value
    if issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            choices = ", ".join(str(choice.value) for choice in hint)
            raise UserError(f"{where} is {value!r}; it can be {choices}") from None
    if hint is int and not isinstance(value, int) and hasattr(value, "__index__"):
        return operator.index(value)  # an integer of numpy
    if not isinstance(value, (hint, int) if hint is float else hint):
        raise UserError(f"{where} is {value!r}; it must be of type {hint.__name__}")
    return value


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind)
    except NameError:  # a type that is only imported for type checkers
        return {}


def _choice(where: str, choices: Mapping[str, type], value: Any) -> Any:
    if not isinstance(value, (str, Mapping)):
        return value  # made in code
    table = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = table.pop("name", None)
    if name not in choices:
        raise UserError(f"{where} is {name!r}; it can be {', '.join(choices)}")
    unknown = set(table) - {f.name for f in fields(choices[name])}
    if unknown:
        raise UserError(f"{where}: {name} has no setting {sorted(unknown)[0]!r}")
    return choices[name](**table)
