"""Checkpoints: whole or not at all.

``DIR/00000042/`` holds one part a learner (``learner-0.json`` and ``.safetensors``: model,
optimizers, random state, the strategy's memory, the user's other objects) and ``pool.json``, which
says what was committed at that instant. Parts are written into ``DIR/00000042.tmp``; when the last
one is there the coordinator adds ``pool.json`` and renames the directory, so a checkpoint that can
be seen is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from unisono.errors import UserError
from unisono.learner.state_codec import decode, encode

POOL = "pool.json"
_TORN = ".tmp"


def write_part(directory: Path, sync_round: int, number: int, state: dict[str, Any]) -> Path:
    """Writes one learner's part; returns the directory that it is in."""
    folder = directory / f"{sync_round:08d}{_TORN}"
    path = folder / f"learner-{number}.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    plain = encode(state, tensors)
    names = list(tensors)
    flat = {str(i): tensors[n].detach().cpu().contiguous().clone() for i, n in enumerate(names)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(flat, path)
        _sync(path)
        _write(path.with_suffix(".json"), json.dumps({"state": plain, "tensors": names}))
    except (OSError, SafetensorError) as error:
        for mine in (path, path.with_suffix(".json")):
            with suppress(OSError):
                mine.unlink(missing_ok=True)
        raise UserError(
            f"checkpoint {sync_round} could not be written to {directory} ({_reason(error)}): "
            "the one before is whole; make room and go on with resume"
        ) from error
    return folder


def commit(folder: Path, pool: dict[str, Any], keep: int) -> None:
    """All parts are there: makes the checkpoint visible, and takes older ones away.

    If the disk is full now, the run goes on: the checkpoint before is whole, and the next part that
    a learner writes will say so.
    """
    final = folder.with_suffix("")
    try:
        _write(folder / POOL, json.dumps(pool))
        _sync(folder)
        _remove(final)
        folder.rename(final)
        _sync(final.parent)
    except OSError as error:
        _remove(folder)
        warnings.warn(f"checkpoint {final} was not kept: {_reason(error)}", stacklevel=2)
        return
    for old in checkpoints(final.parent)[:-keep]:
        _remove(old)


def checkpoints(directory: Path) -> list[Path]:
    """The whole checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.name.isdigit() and (p / POOL).is_file())


def remove_torn(directory: Path) -> None:
    """Takes away what never became a checkpoint; nobody may be writing one."""
    for folder in directory.glob(f"*{_TORN}"):
        _remove(folder)


def read_pool(folder: Path) -> dict[str, Any]:
    """What was committed when the checkpoint was made."""
    pool: dict[str, Any] = json.loads((folder / POOL).read_text())
    return pool


def read_part(folder: Path, number: int) -> dict[str, Any]:
    """One learner's part, in the order of their numbers; one for whom there is none: the first.

    Who dies is replaced under a new number, so numbers may be missing; parts may not.
    """
    parts = sorted(
        folder.glob("learner-*.json"), key=lambda path: int(path.stem[len("learner-") :])
    )
    path = parts[number if number < len(parts) else 0]
    text = json.loads(path.read_text())
    with safe_open(path.with_suffix(".safetensors"), framework="pt") as file:
        # Copies: what is read must not hang on a file that will be taken away.
        names = enumerate(text["tensors"])
        tensors = {name: file.get_tensor(str(place)).clone() for place, name in names}
    state: dict[str, Any] = decode(text["state"], tensors)
    return state


def _remove(folder: Path) -> None:
    """Its ``pool.json`` first: what is half removed does not look whole."""
    with suppress(OSError):
        (folder / POOL).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
