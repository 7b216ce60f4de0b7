"""Frames and states made elsewhere, from one .npz file to a PREP."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from unisono.data.corpus import Corpus
from unisono.data.prep import Prep, write_prep
from unisono.data.split import Part, hold_out
from unisono.errors import UserError

_KEYS = ("feats", "states", "starts", "utts", "spks", "part", "log_prior")


def convert_frames(npz: Path, out: Path, *, heldout_share: float = 0.1, seed: int = 0) -> Prep:
    """Makes a PREP of the frames in a .npz file.

    The file has `feats` (N x D floats), `states` (N integers), `starts` (U + 1 integers),
    `utts`, `spks` and `part` (U texts; each part `train` or `test`) and `log_prior` (one float a
    state; it says how many states there are, and the log priors themselves are counted anew,
    since the held-out speakers' frames no longer belong to them).

    Args:
        npz: The file.
        out: The PREP to make.
        heldout_share: The share of the train speakers that is held out.
        seed: Which speakers are held out.

    Returns:
        The new PREP, opened.

    Raises:
        UserError: The file is missing, is no such file, lacks a key, holds pickled objects or
            arrays that do not fit together; or `out` exists.
    """
    arrays = _read(npz)
    feats = arrays["feats"]
    if feats.dtype == np.float64:
        feats = feats.astype(np.float32)
    if arrays["log_prior"].ndim != 1:
        raise UserError(f"{npz}: log_prior has shape {arrays['log_prior'].shape}, not one axis")
    given = Corpus(
        origin=str(npz),
        frames=feats,
        states=arrays["states"],
        starts=arrays["starts"],
        utterances=_texts(npz, "utts", arrays["utts"]),
        speakers=_texts(npz, "spks", arrays["spks"]),
        parts=_parts(npz, _texts(npz, "part", arrays["part"])),
        state_count=len(arrays["log_prior"]),
    )
    given.check()
    said = list(zip(given.speakers, given.parts, strict=True))
    trained = {name for name, part in said if part is Part.TRAIN}
    heldout = hold_out(trained, heldout_share, seed)
    parts = [
        Part.HELDOUT if part is Part.TRAIN and name in heldout else part for name, part in said
    ]
    made_by: dict[str, JsonValue] = {"heldout_share": heldout_share, "seed": seed}
    return write_prep(out, replace(given, parts=parts), made_by)


def _read(npz: Path) -> dict[str, NDArray[Any]]:
    if not npz.is_file():
        raise UserError(f"no frames at {npz}: there is no such file")
    try:
        archive = np.load(npz, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UserError(f"{npz} holds one array, not named ones: write it with numpy.savez")
        with archive:
            missing = [key for key in _KEYS if key not in archive]
            if missing:
                raise UserError(
                    f"{npz} lacks {', '.join(missing)}: it must have {', '.join(_KEYS)}"
                )
            return {key: np.asarray(archive[key]) for key in _KEYS}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        text = " ".join(str(error).split())
        if "pickle" in text:
            text = "it is no .npz file, or holds Python objects"
        raise UserError(f"{npz} cannot be read as plain arrays: {text}") from error


def _texts(npz: Path, name: str, array: NDArray[Any]) -> list[str]:
    if array.ndim != 1 or array.dtype.kind != "U":
        raise UserError(f"{npz}: {name} is {array.dtype} {array.shape}; it must be U texts")
    return [str(text) for text in array]


def _parts(npz: Path, texts: list[str]) -> list[Part]:
    known = {part.value: part for part in (Part.TRAIN, Part.TEST)}
    unknown = sorted(set(texts) - set(known))
    if unknown:
        raise UserError(f"{npz}: part {unknown[0]!r} is unknown; each is train or test")
    return [known[text] for text in texts]
