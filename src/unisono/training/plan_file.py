"""The directory of several runs that belong together: begun or gone on with, with one plan."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unisono.config import Config
from unisono.data import Prep
from unisono.errors import UserError
from unisono.fabric.files import take_lock
from unisono.runs.directory import check_room, write_atomically

PLAN = "plan.json"


def settings_of(config: Config) -> dict[str, Any]:
    """All keys of a configuration by name; the data by its fingerprint."""
    values = config.model_dump(mode="json")
    if config.prep:
        values["prep"] = Prep.open(Path(config.prep)).fingerprint
    settings: dict[str, Any] = {}
    for key, value in values.items():
        inner = value.items() if isinstance(value, dict) else ()
        settings |= {f"{key}.{name}": each for name, each in inner} or {key: value}
    return settings


def check_place(out: Path, kind: str) -> None:
    """Whether the directory can be made, or gone on with.

    Raises:
        UserError: it cannot be written, or is something else.
    """
    check_room(out)
    try:
        taken = out.is_dir() and not (out / PLAN).exists() and any(out.iterdir())
    except OSError as error:
        raise UserError(f"cannot read {out}: {error.strerror}") from None
    if taken:
        raise UserError(f"{out} is there, and is no {kind}: name another --out")


@contextmanager
def planned(out: Path, settings: Mapping[str, Any], command: str, kind: str) -> Iterator[None]:
    """Inside, the directory is there with this plan, and nobody else is at work in it.

    If that fails before there is any run in a new directory, it is removed.

    Args:
        out: the directory.
        settings: all that its runs depend on, by name.
        command: of ``unisono``, that is at work.
        kind: what it makes.

    Raises:
        UserError: it cannot be written, is something else, was begun with another plan, or another
            process is at work in it.
    """
    plan = out / PLAN
    is_new = not os.path.lexists(out)
    check_place(out, kind)
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None
    locked = take_lock(descriptor)
    try:
        if not locked:
            raise UserError(f"another `unisono {command}` is at work in {out}")
        if plan.exists():
            _check_same(out, plan, settings)
        else:
            write_atomically(plan, json.dumps(settings, indent=1).encode())
        yield
    except Exception:
        if locked and is_new and not any(path.is_dir() for path in out.iterdir()):
            shutil.rmtree(out, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _check_same(out: Path, plan: Path, settings: Mapping[str, Any]) -> None:
    try:
        before = json.loads(plan.read_text())
    except (OSError, ValueError):
        raise UserError(f"{plan} cannot be read: name another --out") from None
    for key in [*before, *settings]:
        if before.get(key) != settings.get(key):
            raise UserError(
                f"{out} was begun with {_described(before, key)}, and this is "
                f"{_described(settings, key)}: say the same again, or name another --out"
            )


def _described(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    return f"no {key}" if value is None else f"{key} {value}"
