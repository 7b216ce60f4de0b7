"""Whole utterances as examples of CTC: every few frames, and the phones said."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.data import Corpus, FrameSource, Part, Prep, SpecAugment, UtteranceSource, write_prep
from unisono.errors import UserError

# Of train utterances of 4, 9, 2 and 5 frames; 2 2 needs three outputs, 4 4 of two utterances none.
LABELS = [[3], [1], [2, 2], [1, 4], [4, 1], [2], [3, 1]]


@pytest.fixture
def unaligned(corpus: Corpus) -> Corpus:
    labels = [np.array(each) for each in LABELS]
    none = np.zeros(0, dtype=np.int64)
    return replace(corpus, states=none, state_count=0, phones=4, labels=labels)


@pytest.fixture
def prep(unaligned: Corpus, tmp_path: Path) -> Prep:
    return write_prep(tmp_path / "prep", unaligned, {})


def test_a_prep_without_alignment_reads_back_what_was_written(prep: Prep) -> None:
    assert not (prep.path / "states.npy").exists()
    assert not (prep.path / "priors.npy").exists()
    assert (prep.header.states, prep.header.phones, prep.header.labels) == (0, 4, 11)
    starts = prep.label_starts
    said = [prep.labels[a:b].tolist() for a, b in pairwise(starts)]
    assert said == LABELS
    prep.verify()


def test_phones_are_part_of_the_fingerprint_and_may_stand_beside_states(
    corpus: Corpus, unaligned: Corpus, prep: Prep, tmp_path: Path
) -> None:
    other = replace(unaligned, labels=[unaligned.labels[1], *unaligned.labels[1:]])
    assert write_prep(tmp_path / "other", other, {}).fingerprint != prep.fingerprint
    both = write_prep(tmp_path / "both", replace(corpus, phones=4, labels=unaligned.labels), {})
    np.testing.assert_array_equal(both.states, corpus.states)
    np.testing.assert_array_equal(both.labels, prep.labels)
    both.verify()


def test_what_does_not_fit_is_refused(unaligned: Corpus, prep: Prep, tmp_path: Path) -> None:
    for broken, reason in (
        (replace(unaligned, labels=unaligned.labels[1:]), "phones of 6"),
        (replace(unaligned, phones=3), "'a2' has phones outside 1..3"),
        (replace(unaligned, phones=0), "neither states nor phones"),
        (replace(unaligned, labels=[np.zeros(0, np.int64)] * 7), "no utterance has phones"),
    ):
        with pytest.raises(UserError, match=reason):
            write_prep(tmp_path / "broken", broken, {})
    for name, array, reason in (
        ("labels", np.full(11, 5, dtype=np.int16), "outside 1..4"),
        ("label_starts", prep.label_starts[::-1].copy(), "does not rise"),
    ):
        kept = (prep.path / f"{name}.npy").read_bytes()
        np.save(prep.path / f"{name}.npy", array)
        with pytest.raises(UserError, match=reason):
            Prep.open(prep.path)
        (prep.path / f"{name}.npy").write_bytes(kept)


def test_examples_are_every_third_frame_with_context_and_copies_around(prep: Prep) -> None:
    source = UtteranceSource(prep, Part.TRAIN, subsampling=3, context=1, left=1, right=2)
    # Utterance 3 has 2 frames, so one output, and two phones.
    assert source.utterances.tolist() == [0, 2, 6]
    assert source.left_out == 1
    frames = FrameSource(prep, Part.TRAIN, context=1)
    x, y = source.batch(np.array([1, 0, 2]))
    assert y.tolist() == [[3, 2, 2], [2, 3, 0], [2, 3, 1]]
    assert x.shape == (3, 1 + 3 + 2, 9)
    # The frames of the train utterances are numbered through: 0..3, 4..12, 13..14, 15..19.
    expected = [[4, 4, 7, 10, 10, 10], [0, 0, 3, 3, 3, 3], [15, 15, 18, 18, 18, 18]]
    for row, places in zip(x, expected, strict=True):
        assert torch.equal(row, frames.batch(np.array(places))[0])
    with pytest.raises(IndexError):
        source.batch(np.array([3]))


def test_all_are_long_enough_without_subsampling_and_none_with_much(prep: Prep) -> None:
    every = UtteranceSource(prep, Part.TRAIN, subsampling=1, context=0, left=0, right=0)
    assert (len(every), every.left_out) == (4, 0)
    assert every.batch(np.arange(4))[1][:, 0].tolist() == [4, 9, 2, 5]
    with pytest.raises(UserError, match="no test utterance has as many outputs as phones"):
        UtteranceSource(prep, Part.TEST, subsampling=50, context=0, left=0, right=0)


def test_masks_are_those_of_the_frames(prep: Prep) -> None:
    masks = SpecAugment(
        frequency_masks=1, frequency_width=2, time_masks=1, time_width=4, time_share=1.0, seed=3
    )
    options = {"subsampling": 1, "context": 1, "left": 0, "right": 0}
    source = UtteranceSource(prep, Part.TRAIN, augment=masks, **options)
    frames = FrameSource(prep, Part.TRAIN, context=1, augment=masks)
    hidden, _ = source.epoch_batch(np.array([1]), 2)
    assert torch.equal(hidden[0], frames.epoch_batch(np.arange(4, 13), 2)[0])
    assert not torch.equal(hidden, source.batch(np.array([1]))[0])
