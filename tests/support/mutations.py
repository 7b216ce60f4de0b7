"""Small damage to text and binary files, drawn by seed."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

_NAMES = (
    "nan inf -inf 1e308 -1e308 -1 0 99999999999999999999 1_0 - | ../../.. / /dev/zero "
    "<eps> #0 #1 <s> </s> <unk> SIL SPN é\u2028ß \u3000"
)
_FIELDS = [*_NAMES.encode().split(b" "), b"", b"\xff\xfe", b"\0", b"\x1c", b"a" * 5000]
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e308, float("nan"), float("-inf"), "", "x", [], [0], {}, {"a": 1},
)  # fmt: skip
_NUMBERS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def damaged_text(data: bytes, draw: random.Random) -> bytes:
    """A line less, twice, cut or elsewhere; a field less, more or another; or mere noise."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    fields = lines[at].split()
    where = draw.randrange(len(fields) + 1)
    kind = draw.randrange(9)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, draw.choice(lines))
    elif kind == 2:
        lines[at] = lines[at][: draw.randrange(len(lines[at]) + 1)]
    elif kind == 3:
        draw.shuffle(lines)
    elif kind == 4:
        return draw.randbytes(draw.randrange(200))
    else:
        if kind == 5:
            draw.shuffle(fields)
        elif kind == 6:
            fields[where : where + 1] = []
        elif kind == 7:
            fields[where : where + 1] = [draw.choice(_FIELDS)]
        else:
            fields.insert(where, draw.choice(_FIELDS))
        lines[at] = b" ".join(fields)
    return b"\n".join(lines)


def damaged_bytes(data: bytes, draw: random.Random) -> bytes:
    """The file cut off, or other bits, bytes or numbers, most of them in the header."""
    broken = bytearray(data)
    kind = draw.randrange(5)
    if kind == 0:
        return data[: draw.randrange(len(data) if draw.random() < 0.5 else 200)]
    for _ in range(draw.choice((1, 1, 2, 8))):
        at = draw.randrange(len(data) if draw.random() < 0.2 else min(len(data), 100))
        if kind == 1:
            broken[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            broken[at : at + 4] = struct.pack("<I", draw.choice(_NUMBERS))
        elif kind == 3:
            broken[at : at + 4] = struct.pack(">I", draw.choice(_NUMBERS))
        else:
            broken[at] = draw.randrange(256)
    return bytes(broken)


def damaged_json(data: bytes, draw: random.Random) -> bytes:
    """A value less, or another one, somewhere in one of the lines, or in all where they are one."""
    lines = data.splitlines(keepends=True)
    try:
        at, text = 0, json.loads(data)
        lines = [data]
    except ValueError:
        at = draw.randrange(len(lines) or 1)
        try:
            text = json.loads(lines[at])
        except (ValueError, IndexError):
            return damaged_text(data, draw)
    places = list(_places(text))
    if not places:
        return damaged_text(data, draw)
    table, key = draw.choice(places)
    if draw.random() < 0.3:
        del table[key]
    else:
        table[key] = draw.choice(_VALUES)
    lines[at] = json.dumps(text).encode() + b"\n"
    return b"".join(lines)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All values inside one, each as what it is in and where."""
    keys = list(value) if isinstance(value, dict) else range(len(value) if _is_list(value) else 0)
    found = [(value, key) for key in keys]
    return [*found, *(place for key in keys for place in _places(value[key]))]


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
