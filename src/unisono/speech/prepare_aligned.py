"""From a data directory and imported alignments to a PREP."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unisono.data import Prep, hold_out, write_prep
from unisono.errors import UserError
from unisono.speech.corpus.data_directory import no_usable_utterance, read_lines
from unisono.speech.corpus.exclusions import EXCLUDED_FILE, ExclusionReason, Exclusions
from unisono.speech.corpus.sources import SOURCES_FILE
from unisono.speech.features.kaldi_archives import (
    BadArchiveError,
    Ints,
    Pointer,
    read_vector,
    read_vectors,
)
from unisono.speech.prepare import (
    PrepareOptions,
    extract_corpus,
    make_corpus,
    scratch_directory,
    sources_of,
)
from unisono.speech.validation import validate_data

# A state beyond this is taken for garbage: tables of all states are made.
_MAX_STATES = 1_000_000


def prepare_aligned(
    data: Path, alignments: Path, out: Path, options: PrepareOptions, log: Callable[[str], None]
) -> Prep:
    """Makes a PREP whose states are those of imported alignments; it can be trained on.

    What the states are is known elsewhere only, so there is nothing to decode with.

    Args:
        data: A corpus, as for `prepare`; it needs no transcripts.
        alignments: A state a frame for each utterance: an .scp file, or else an archive.
        out: The PREP to make.
        options: The settings; those of Gaussians, tying and language are not used.
        log: Receives progress lines.

    Raises:
        UserError: `out` exists, an input cannot be read, or nothing usable is left.
    """
    if os.path.lexists(out):
        raise UserError(f"{out} exists already: choose another place or remove it first")
    if options.perturb:
        raise UserError("--perturb cannot be used with --alignments: copies have none")
    imported = _open_alignments(alignments)
    validated = validate_data(data, options.inputs, None, archives=options.uses_archives())
    exclusions = validated.exclusions
    log(f"{len(validated.utterances)} utterances can be used, {len(imported)} are aligned")
    heldout = hold_out({u.speaker for u in validated.utterances}, options.heldout, options.seed)
    with scratch_directory(out) as scratch:
        kept = []
        for utterance, extracted in extract_corpus(validated, heldout, options, scratch, log):
            states = _states(utterance.id, len(extracted.network), imported, exclusions)
            if states is not None:
                kept.append((utterance, extracted, states))
        for line in exclusions.summary():
            log(line)
        if all(utterance.speaker in heldout for utterance, _, _ in kept):
            raise no_usable_utterance(data, exclusions)
        count = 1 + max(int(states.max()) for _, _, states in kept)
        facts = {**options.facts(), "alignments": str(alignments)}
        files = {
            EXCLUDED_FILE: exclusions.text().encode(),
            SOURCES_FILE: sources_of([(u, h) for u, h, _ in kept], validated.reader),
        }
        corpus = make_corpus(data, kept, heldout, count, scratch)
        return write_prep(out, corpus, facts, beside=files)


def _open_alignments(path: Path) -> Mapping[str, Pointer | Ints]:
    """The alignment of each utterance, or where it is."""
    try:
        if path.suffix != ".scp":
            return dict(read_vectors(path))
        pointers: dict[str, Pointer | Ints] = {}
        for line in read_lines(path):
            name, *rest = line.split(maxsplit=1)
            if not rest or rest[0].endswith("|"):
                raise UserError(f"{path}: {line!r} does not point into an archive")
            pointers[name] = Pointer.of(str(path.parent / rest[0]))
        return pointers
    except BadArchiveError as error:
        raise UserError(str(error)) from None


def _states(
    name: str, frames: int, alignments: Mapping[str, Pointer | Ints], exclusions: Exclusions
) -> NDArray[np.int64] | None:
    """The states of an utterance; None, with the reason among the exclusions: it has none."""
    found = alignments.get(name)
    problem = ""
    states = np.zeros(0, dtype=np.int64)
    try:
        if found is None:
            problem = "there is none"
        else:
            vector = read_vector(found) if isinstance(found, Pointer) else found
            states = vector.astype(np.int64)
    except BadArchiveError as error:
        problem = str(error)
    if not problem and len(states) != frames:
        problem = f"{len(states)} states for {frames} frames"
    if not problem and (states.min() < 0 or states.max() >= _MAX_STATES):
        problem = f"states from {states.min()} to {states.max()}"
    if problem:
        exclusions.add(name, ExclusionReason.NO_ALIGNMENT, problem)
        return None
    return states
