"""Reference pages made from the code: the command line, the configuration, strategies' options."""

from __future__ import annotations

import enum
import inspect
import re
from dataclasses import MISSING, Field, fields
from typing import Any

import typer.main
from pydantic import BaseModel

from unisono.cli.app import app
from unisono.config import Config
from unisono.strategies import registry
from unisono.strategies.options import IN_CODE


def command_line() -> str:
    """Every command with its arguments and options."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return "\n".join(_command(name, command) for name, command in commands.items())


def _command(name: str, command: Any) -> str:
    lines = [f"## unisono {name}", "", inspect.cleandoc(command.help or ""), ""]
    arguments, rows = [], ["| | default | |", "| --- | --- | --- |"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        label = ", ".join((*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            label = parameter.metavar or parameter.name.upper()
            arguments.append(label)
        text = _cell(getattr(parameter, "help", None) or "")
        rows.append(f"| `{label}` | {_default(parameter)} | {text} |")
    usage = " ".join(("unisono", name, "[OPTIONS]", *arguments))
    return "\n".join((*lines, "```text", usage, "```", "", *rows, ""))


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(shown := getattr(parameter, "show_default", None), str):
        return shown
    value = parameter.default
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or value is False or value == () or callable(value):
        return ""
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def configuration() -> str:
    """Every key of config.toml, from the models that check it."""
    return "\n".join(_table(Config(), ""))


def _table(table: Any, prefix: str) -> list[str]:
    lines = [f"## `[{prefix[:-1]}]`", "", _first(table), ""] if prefix else ["## Top level", ""]
    lines += ["| key | default | meaning |", "| --- | --- | --- |"]
    inner: list[str] = []
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, BaseModel):
            inner += ["", *_table(value, f"{prefix}{name}.")]
        else:
            meaning = _cell(field.description or "")
            lines.append(f"| `{prefix}{name}` | `{_toml(value)}` | {meaning} |")
    return [*lines, *inner]


def _first(table: Any) -> str:
    text = inspect.cleandoc(type(table).__doc__ or "").split("\n\n")[0]
    plain = re.sub(r"^`\[\w+\]`: ", "", " ".join(text.split()))
    return plain[:1].upper() + plain[1:]


def _toml(value: Any) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def strategy_options() -> str:
    """Every strategy with its options, from the dataclasses."""
    lines: list[str] = []
    for name in registry.names():
        strategy = registry.make(name)
        kind = type(strategy)
        lines += [f"## {name}", "", _first(strategy).removesuffix(".") + ".", ""]
        lines += [f"- shares: {strategy.shares}", f"- who waits: {strategy.waits}"]
        schedule = strategy.schedule.value
        lines.append(f"- learning rate: {strategy.rate_rule}; schedule: {schedule}")
        lines += [*([f"- paper: <{strategy.paper}>"] if strategy.paper else []), ""]
        options = [f for f in fields(strategy) if IN_CODE not in f.metadata]
        if options:
            texts = _field_texts(kind)
            lines += ["| option | default | meaning |", "| --- | --- | --- |"]
            lines += [
                f"| `{f.name}` | `{_field_default(f)}` | {_cell(texts.get(f.name, ''))} |"
                for f in options
            ]
        lines.append("")
    return "\n".join(lines)


def _field_default(field: Field[Any]) -> str:
    value: Any = field.default
    factory: Any = field.default_factory
    if value is MISSING:
        value = factory()
    name = getattr(value, "name", None)
    return name if isinstance(name, str) and not isinstance(value, enum.Enum) else _toml(value)


def _field_texts(kind: type) -> dict[str, str]:
    """The string under each field of a dataclass and of its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        source = inspect.getsource(base) if base.__module__.startswith("unisono") else ""
        for name, text in re.findall(r'^    (\w+): [^\n]+\n    """(.*?)"""', source, re.M | re.S):
            texts[name] = text.replace("``", "`")
    return texts
