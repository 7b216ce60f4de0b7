"""Reading and writing a configuration.

Four layers, the later over the earlier: the defaults, the file of `--config`, the flags,
`--set key=value`. Whatever is wrong is told in one line that names the key and where it was said.
"""

from __future__ import annotations

import difflib
import reprlib
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from unisono.config.tables import Config, ConfigTable
from unisono.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

TOO_DEEP = "tables or lists within each other too deep to be read: no key needs more than three"


def load(file: Path | None, sets: Sequence[str], flags: Mapping[str, object]) -> Config:
    """Reads a configuration: defaults, then the file, then flags, then `--set`.

    Args:
        file: a TOML file, such as another run's config.toml.
        sets: texts `key=value`, a dot between table and key; a value is TOML or a bare word.
        flags: values by key; None means that the flag was not given.

    Raises:
        UserError: a file that cannot be read, an unknown key, a value that does not fit.
    """
    try:
        layers = _laid(file, sets, flags)
        return Config.model_validate(layers.values)
    except ValidationError as error:
        raise UserError(layers.explain(error)) from None
    except RecursionError:
        where = "--set" if file is None else file
        raise UserError(f"{where}: {TOO_DEEP}") from None


def dump(config: Config) -> str:
    """Returns the complete configuration as TOML; `load` reads back an equal one."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def _laid(file: Path | None, sets: Sequence[str], flags: Mapping[str, object]) -> _Layers:
    layers = _Layers()
    if file is not None:
        layers.lay((), _read(file), f"in {file}")
    for key, value in flags.items():
        if value is not None:
            flag = key.removesuffix(".name").replace("_", "-").replace(".", "-")
            plain = fspath(value) if isinstance(value, PathLike) else value
            layers.lay(tuple(key.split(".")), plain, f"from --{flag}")
    for text in sets:
        key, equals, value = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            raise UserError(f"--set {text!r} is not key=value; for example --set rate.start=0.1")
        layers.lay(path, _value(path, value.strip()), "from --set")
    return layers


class _Layers:
    """Values laid over each other, and where each of them was said."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._sources: dict[tuple[str, ...], str] = {}

    def lay(self, path: tuple[str, ...], value: object, source: str) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                self.lay((*path, key), inner, source)
        if path and not (isinstance(value, Mapping) and value):
            table = self.values
            for key in path[:-1]:
                if not isinstance(table.get(key), dict):
                    table[key] = {}
                table = table[key]
            if not (isinstance(value, Mapping) and isinstance(table.get(path[-1]), dict)):
                table[path[-1]] = value
            self._sources[path] = source

    def explain(self, error: ValidationError) -> str:
        """Returns the first fault in one line."""
        fault = error.errors()[0]
        path = tuple(str(part) for part in fault["loc"])
        if path[0] == "strategy" and len(path) > 1:
            path = path[:2]  # what follows names the members of the union, not keys
            text = "must be text, a number, true or false, or a table of these"
        else:
            text = _wanted(fault["type"], fault["msg"])
        said, source = self._said(path)
        if fault["type"] == "extra_forbidden":
            key = ".".join(said)
            return f"unknown key '{key}' {source}; the nearest known key is '{_nearest(key)}'"
        key = ".".join(part for part in path if not part.isdigit())
        return f"{key} {source} {text}, but is {reprlib.repr(fault['input'])}"

    def _said(self, path: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        """Finds the last thing said at a path, within it, or in a table around it."""
        for said, source in reversed(self._sources.items()):
            shared = min(len(said), len(path))
            if said[:shared] == path[:shared]:
                return said, source
        return path, ""


def describe_keys(table: ConfigTable | None = None, prefix: str = "") -> list[tuple[str, str, str]]:
    """Every key with its default, as in config.toml, and what it means."""
    rows = []
    table = table or Config()
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, ConfigTable):
            rows += describe_keys(value, f"{prefix}{name}.")
        else:
            plain = value.value if isinstance(value, Enum) else value
            known = {} if plain is None else {"x": plain}
            default = tomli_w.dumps(known, indent=0).partition("=")[2]
            default = " ".join(default.split()).replace("[ ", "[").replace(", ]", "]")
            rows.append((prefix + name, default, field.description or ""))
    return rows


def _wanted(kind: str, message: str) -> str:
    if kind in ("model_type", "dict_type"):
        return "must be a table"
    if kind == "bool_type":
        return "must be true or false"
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def _keys(table: ConfigTable | None = None, prefix: str = "") -> dict[str, Any]:
    """All keys with a dot between table and key, and their types."""
    known: dict[str, Any] = {}
    table = table or Config()
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, ConfigTable):
            known.update(_keys(value, f"{prefix}{name}."))
        else:
            known[prefix + name] = field.annotation
    return known


def _nearest(key: str) -> str:
    """Returns the known key that looks most like an unknown one, in whichever table it is."""

    def likeness(known: str) -> float:
        pairs = ((key, known), (key.rpartition(".")[2], known.rpartition(".")[2]))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    return max(_keys(), key=likeness)


def _value(path: tuple[str, ...], text: str) -> object:
    """Reads a value of `--set`: TOML, else the bare text; a key that holds text keeps it so."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    if len(parsed) > 1 or (_keys().get(".".join(path)) is str and not isinstance(value, str)):
        return text
    return value


def _read(file: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the configuration {file}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} is not a TOML file: {reason}") from None
    return values
