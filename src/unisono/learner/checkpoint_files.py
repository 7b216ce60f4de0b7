"""Checkpoints: whole or not at all.

``DIR/00000042/`` holds one part a member (``learner-0.json`` and ``.safetensors``; a server's are
``server-4``: model, optimizers, random state, the strategy's memory, the user's other objects),
``pool.json``, which says what was committed at that instant, and ``SHA256SUMS``, which names each
of these files with its digest (``sha256sum -c SHA256SUMS`` checks them by hand). Parts are written
into ``DIR/00000042.tmp``; when the last one is there the coordinator adds ``pool.json`` and
``SHA256SUMS`` and renames the directory. What a disk does to it later is found by the digests: a
run goes on from the newest checkpoint that is whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from unisono.errors import UserError
from unisono.learner.state_codec import decode, encode

FORMAT = 2
"""The format of checkpoints; others are refused."""
POOL = "pool.json"
SUMS = "SHA256SUMS"
DAMAGED = ".damaged"
LEARNER = "learner"
"""The role whose parts hold trained models."""
_TORN = ".tmp"
_SUM_OF_PART = ".sha256"
_LINE = re.compile(r"([0-9a-f]{64})  (pool\.json|(?:learner|server)-[0-9]+\.(?:json|safetensors))")
_CHUNK = 2**20
_NOT_AS_WRITTEN = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
    SafetensorError,
)  # fmt: skip

log = logging.getLogger("unisono")


class NotWrittenError(Exception):
    """A part could not be written; the text says why."""


class DamagedError(Exception):
    """A checkpoint is damaged; the text says why."""


@dataclass
class Loaded:
    """The newest intact checkpoint, as one learner reads it."""

    folder: Path
    pool: dict[str, Any]
    state: dict[str, Any]
    others: list[dict[str, Any]]
    """What the strategy has in all other parts, if that was wanted."""
    passed_over: list[tuple[Path, str]] = field(default_factory=list)
    """Newer ones that are damaged, and why."""


def part_folder(directory: Path, sync_round: int) -> Path:
    """Where the parts of a checkpoint are written."""
    return directory / f"{sync_round:08d}{_TORN}"


def write_part(
    directory: Path, sync_round: int, number: int, state: dict[str, Any], role: str = LEARNER
) -> Path:
    """Writes one member's part; returns the directory that it is in.

    Raises:
        NotWrittenError: the disk is full, or fails; nothing of the part is left.
    """
    folder = part_folder(directory, sync_round)
    path = folder / f"{role}-{number}.safetensors"
    files = [path, path.with_suffix(".json"), path.with_suffix(_SUM_OF_PART)]
    tensors: dict[str, torch.Tensor] = {}
    plain = encode(state, tensors)
    names = list(tensors)
    flat = {str(i): tensors[n].detach().cpu().contiguous().clone() for i, n in enumerate(names)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(flat, path)
        _sync(path)
        _write(files[1], json.dumps({"state": plain, "tensors": names}))
        _write(files[2], _sum_lines(files[:2]))
    except (OSError, SafetensorError) as error:
        for mine in files:
            with suppress(OSError):
                mine.unlink(missing_ok=True)
        raise NotWrittenError(_reason(error)) from error
    return folder


def commit(folder: Path, pool: dict[str, Any], keep: int) -> None:
    """Completes a checkpoint of which all parts are written, and removes older ones.

    If that cannot be written, the run goes on: the checkpoint before is whole, and the next one is
    tried at its time.
    """
    final = folder.with_suffix("")
    try:
        _write(folder / POOL, json.dumps({"format": FORMAT, **pool}))
        sums = sorted(folder.glob(f"*{_SUM_OF_PART}"))
        text = "".join(path.read_text() for path in sums) + _sum_lines([folder / POOL])
        _write(folder / SUMS, text)
        for path in sums:
            path.unlink()
        _sync(folder)
        remove(final)
        folder.rename(final)
        _sync(final.parent)
    except OSError as error:
        give_up(folder, _reason(error))
        return
    for old in checkpoints(final.parent)[:-keep]:
        remove(old)
    for torn in final.parent.glob(f"*{_TORN}"):
        if torn.name < folder.name:
            remove(torn)


def give_up(folder: Path, reason: str) -> None:
    """Removes a checkpoint that could not be written, with a warning."""
    remove(folder)
    text = "unisono: checkpoint %s could not be written (%s); "
    text += "earlier ones stay, and training goes on"
    log.warning(text, folder.with_suffix(""), reason)


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoints, oldest first; they are verified when they are read."""
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.name.isdigit() and p.is_dir())


def remove_torn(directory: Path) -> None:
    """Removes incomplete checkpoints; none may be under way."""
    for folder in directory.glob(f"*{_TORN}"):
        remove(folder)


def set_aside(folder: Path) -> None:
    """Renames a damaged checkpoint, so that it does not count as one that is kept."""
    target = folder.with_suffix(DAMAGED)
    with suppress(OSError):
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def load(
    directory: Path,
    place: int,
    keys: Collection[str] = (),
    role: str = LEARNER,
    *,
    others: bool = False,
) -> Loaded | None:
    """A member's part of the newest intact checkpoint; None: there are no checkpoints.

    Args:
        directory: of the checkpoints.
        place: the member's, among those of its role; see ``read_part``.
        keys: what the part must have.
        role: learner or server.
        others: whether what the strategy has in the others' parts is wanted, too.

    Raises:
        UserError: none is whole, or the newest whole one is in another format.
    """
    passed_over: list[tuple[Path, str]] = []
    for folder in reversed(checkpoints(directory)):
        try:
            names = check(folder)
            pool = read_pool(folder)
            own = part_name(names, place, role)
            state = _read(folder, own)
            if missing := sorted(set(keys) - set(state)):
                raise DamagedError(f"a part has no {missing[0]!r}")
            rest = {Path(n).stem for n in names if n != POOL} - {own} if others else ()
            parts = [_read(folder, part, "strategy")["strategy"] for part in sorted(rest)]
        except DamagedError as damage:
            if folder.is_dir():  # else a run that goes on has taken it away
                passed_over.append((folder, str(damage)))
            continue
        return Loaded(folder, pool, state, parts, passed_over)
    if passed_over:
        reasons = ", ".join(f"{folder.name} ({reason})" for folder, reason in passed_over)
        raise UserError(
            f"no checkpoint in {directory} is whole: {reasons}; put one back from a copy, or begin "
            "a new run in another directory"
        )
    return None


def check(folder: Path) -> list[str]:
    """Compares all files of a checkpoint with their digests; returns their names.

    Raises:
        DamagedError: the first that differs or is missing.
    """
    with _damage_is_told(SUMS):
        lines = (folder / SUMS).read_text().splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    sums = {match[2]: match[1] for match in found if match is not None}
    parts = {Path(name).stem for name in sums if name != POOL}
    wanted = {POOL, *(f"{part}{end}" for part in parts for end in (".json", ".safetensors"))}
    if not parts or sums.keys() != wanted or len(sums) != len(lines):
        raise DamagedError(f"{SUMS} is not a list of its files")
    for name, digest in sums.items():
        with _damage_is_told(name):
            if _digest(folder / name) != digest:
                raise DamagedError(f"{name} differs from its checksum")
    return sorted(sums)


def read_pool(folder: Path) -> dict[str, Any]:
    """What was committed when the checkpoint was made.

    Raises:
        DamagedError: it cannot be read.
        UserError: it has another format.
    """
    with _damage_is_told(POOL):
        pool: dict[str, Any] = json.loads((folder / POOL).read_text())
        version = pool["format"]
        if version == FORMAT:
            pool["committed"] = [[int(start), int(stop)] for start, stop in pool["committed"]]
            _check_ranges(pool["committed"])
            pool["sync_round"] = int(pool["sync_round"])
            return pool
    raise UserError(
        f"{folder} has format {version} of another version of Unisono, and this one reads format "
        f"{FORMAT}: go on with that version, or begin a new run"
    )


def read_part(
    folder: Path, place: int, names: Collection[str] | None = None, role: str = LEARNER
) -> dict[str, Any]:
    """One member's part; see ``part_name``.

    Raises:
        DamagedError: it cannot be read.
    """
    found = [path.name for path in folder.iterdir()] if names is None else names
    return _read(folder, part_name(found, place, role))


def part_name(files: Collection[str], place: int, role: str = LEARNER) -> str:
    """A member's part, by rank among their numbers; the first one if there are fewer parts.

    Where there is none of a role, the learners' count. Who dies is replaced under a new number, so
    numbers may be missing; parts may not.
    """
    parts = part_names(files, role) or part_names(files)
    return parts[place if place < len(parts) else 0]


def _read(folder: Path, part: str, key: str = "") -> dict[str, Any]:
    """A part or, with a key, only that of it."""
    path = folder / f"{part}.json"
    with _damage_is_told(path.name):
        text = json.loads(path.read_text())
        with safe_open(path.with_suffix(".safetensors"), framework="pt") as file:
            # Copies: what is read must not hang on a file that will be taken away.
            places = {n: str(i) for i, n in enumerate(text["tensors"]) if n.startswith(f".{key}")}
            tensors = {name: file.get_tensor(place).clone() for name, place in places.items()}
        pairs = [pair for pair in text["state"]["dict"] if key in ("", pair[0])]
        state: dict[str, Any] = decode({"dict": pairs}, tensors)
        if not isinstance(state, dict):
            raise DamagedError(f"{path.name} holds no state")
        return state


def part_names(files: Collection[str], role: str = LEARNER) -> list[str]:
    """Names of the parts of a role, without their ends, in the order of the members' numbers."""
    start, end = f"{role}-", ".json"
    found = [name for name in files if name.startswith(start) and name.endswith(end)]
    return sorted((n.removesuffix(end) for n in found), key=lambda n: int(n.removeprefix(start)))


@contextmanager
def _damage_is_told(name: str) -> Iterator[None]:
    """Turns any error of reading a file into ``DamagedError``."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedError(f"{name} is missing") from None
    except OSError as error:
        raise DamagedError(f"{name} cannot be read: {error.strerror}") from None
    except _NOT_AS_WRITTEN:
        raise DamagedError(f"{name} is not what was written") from None


def _check_ranges(ranges: list[list[int]]) -> None:
    """Raises ``ValueError`` unless they are in order and do not overlap."""
    bounds = [0, *(bound for both in ranges for bound in both)]
    if bounds != sorted(bounds) or any(start == stop for start, stop in ranges):
        raise ValueError("not ranges of positions")


def _sum_lines(files: Collection[Path]) -> str:
    return "".join(f"{_digest(path)}  {path.name}\n" for path in files)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def remove(folder: Path) -> None:
    """Removes a checkpoint, ``SHA256SUMS`` first, so that half of one is not taken for intact."""
    with suppress(OSError):
        (folder / SUMS).unlink(missing_ok=True)
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
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return " ".join(text.split())
