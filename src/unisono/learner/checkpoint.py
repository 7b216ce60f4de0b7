"""Checkpoints: whole or not at all.

``DIR/00000042/`` holds one part a learner (``learner-0.json`` and ``.safetensors``: model,
optimizers, random state, the strategy's memory, the user's other objects) and ``pool.json``, which
says what was settled at that instant. Parts are written into ``DIR/00000042.tmp``; when the last
one is there the coordinator adds ``pool.json`` and renames the directory, so a checkpoint that can
be seen is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from unisono.events import UserError
from unisono.learner.codec import decode, encode

POOL = "pool.json"


def write_part(directory: Path, agreement: int, number: int, state: dict[str, Any]) -> Path:
    """Writes one learner's part; returns the directory that it is in."""
    folder = directory / f"{agreement:08d}.tmp"
    tensors: dict[str, torch.Tensor] = {}
    plain = encode(state, tensors)
    names = list(tensors)
    flat = {str(i): tensors[n].detach().cpu().contiguous().clone() for i, n in enumerate(names)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"learner-{number}.safetensors"
        save_file(flat, path)
        _sync(path)
        text = json.dumps({"state": plain, "tensors": names})
        _write(folder / f"learner-{number}.json", text)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"checkpoint {folder.name.removesuffix('.tmp')} could not be written to {directory} "
            f"({_reason(error)}): the one before is whole; make room and go on with --resume"
        ) from error
    return folder


def commit(folder: Path, pool: dict[str, Any], keep: int) -> Path:
    """All parts are there: makes the checkpoint visible, and takes older ones away."""
    _write(folder / POOL, json.dumps(pool))
    final = folder.with_suffix("")
    shutil.rmtree(final, ignore_errors=True)
    folder.rename(final)
    _sync(final.parent)
    for old in checkpoints(final.parent)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(directory: Path) -> list[Path]:
    """The whole checkpoints, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.name.isdigit() and (p / POOL).is_file())


def read_pool(folder: Path) -> dict[str, Any]:
    """What was settled when the checkpoint was made."""
    pool: dict[str, Any] = json.loads((folder / POOL).read_text())
    return pool


def read_part(folder: Path, number: int) -> dict[str, Any]:
    """One learner's part; a learner that was not there takes the first one's."""
    path = folder / f"learner-{number}.json"
    if not path.is_file():
        path = min(folder.glob("learner-*.json"))
    text = json.loads(path.read_text())
    with safe_open(path.with_suffix(".safetensors"), framework="pt") as file:
        tensors = {name: file.get_tensor(str(i)) for i, name in enumerate(text["tensors"])}
    state: dict[str, Any] = decode(text["state"], tensors)
    return state


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
