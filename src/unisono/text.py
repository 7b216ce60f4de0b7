"""Small things that make a line read well."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

_LINES = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def counted(number: int, what: str, plural: str = "") -> str:
    """``1 round``, ``2 rounds``, ``1,000 copies``."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def json_line(fields: Mapping[str, object]) -> bytes:
    """A line of a file of JSON lines, with its line end: append it in one write.

    JSON knows no NaN and no infinity, so these become null.
    """
    return _LINES.encode(_finite(fields)).encode() + b"\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
