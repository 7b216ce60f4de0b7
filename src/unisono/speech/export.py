"""A PREP's features and alignments as Kaldi archives."""

from __future__ import annotations

import os
from pathlib import Path

from unisono.data import Prep
from unisono.errors import UserError
from unisono.speech.features.kaldi_archives import write_archive


def export(prep: Prep, out: Path) -> None:
    """Writes feats.ark, ali.ark, the .scp files that point into them, and utt2spk, all sorted.

    Features are not normalised, as in the PREP; alignments have a state a frame. A PREP without
    alignment leaves out ali.ark and its .scp file.

    Args:
        prep: The PREP.
        out: The folder to make.

    Raises:
        UserError: `out` exists, or cannot be written.
    """
    if os.path.lexists(out):
        raise UserError(f"{out} exists already; name another --out")
    folder, table = out.resolve(), prep.table
    bounds = sorted(zip(table.id, prep.starts[:-1], prep.starts[1:], strict=True))
    try:
        folder.mkdir(parents=True)
        arrays = {"feats": prep.frames}
        if prep.header.states:
            arrays["ali"] = prep.states
        for name, array in arrays.items():
            objects = ((utterance, array[first:stop]) for utterance, first, stop in bounds)
            write_archive(folder / f"{name}.ark", folder / f"{name}.scp", objects)
        speakers = (table.speakers[row] for row in table.speaker)
        lines = sorted(f"{u} {who}\n" for u, who in zip(table.id, speakers, strict=True))
        (folder / "utt2spk").write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another place") from None
