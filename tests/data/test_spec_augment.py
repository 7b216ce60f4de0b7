"""Masks belong to the utterance and the epoch, whoever gathers which of its frames, and when."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.data import ChunkSource, Corpus, FrameSource, Part, Prep, SpecAugment, write_prep
from unisono.data import frames as frames_module
from unisono.data.spec_augment import UtteranceMasks

MASKS = SpecAugment(
    frequency_masks=2, frequency_width=4, time_masks=3, time_width=3, time_share=0.6, seed=7
)


@pytest.fixture
def prep(corpus: Corpus, tmp_path: Path) -> Prep:
    wide = np.random.default_rng(3).normal(10, 3, (len(corpus.frames), 9)).astype(np.float16)
    return write_prep(tmp_path / "prep", replace(corpus, frames=wide), {})


def masked_by_hand(
    lengths: list[int], bands: int, settings: SpecAugment, epoch: int
) -> list[np.ndarray]:
    """Which numbers of each utterance are hidden: one number, one mask, one utterance at a time."""
    key = np.array([settings.seed, epoch], dtype=np.uint64)
    masks = settings.frequency_masks + settings.time_masks
    drawn = np.random.Philox(key=key).random_raw(2 * masks * len(lengths)).tolist()

    def uniform(kind: int, mask: int, utterance: int, most: int) -> int:
        at = (kind * masks + mask) * len(lengths) + utterance
        return (drawn[at] // 2**32) * (most + 1) // 2**32

    found = []
    for u, length in enumerate(lengths):
        hidden = np.zeros((length, bands), dtype=bool)
        for m in range(masks):
            if m < settings.frequency_masks:
                width = uniform(0, m, u, min(settings.frequency_width, bands))
                first = uniform(1, m, u, bands - width)
                hidden[:, first : first + width] = True
            else:
                most = min(settings.time_width, int(settings.time_share * length))
                width = uniform(0, m, u, most)
                first = uniform(1, m, u, length - width)
                hidden[first : first + width] = True
        found.append(hidden)
    return found


def spliced(utterances: list[torch.Tensor], left: int, right: int) -> torch.Tensor:
    """Each frame with its neighbours, the first and the last frame repeated."""
    rows = []
    for frames in utterances:
        for t in range(len(frames)):
            near = [min(max(t + d, 0), len(frames) - 1) for d in range(-left, right + 1)]
            rows.append(torch.cat([frames[k] for k in near]))
    return torch.stack(rows)


def by_hand(source: FrameSource, epoch: int) -> list[torch.Tensor]:
    """The masked utterances of a source without context."""
    whole = [source.whole(u)[0] for u in range(len(source.utterances))]
    bands = whole[0].shape[1]
    hidden = masked_by_hand([len(x) for x in whole], bands, MASKS, epoch)
    return [x.masked_fill(torch.from_numpy(h), 0.0) for x, h in zip(whole, hidden, strict=True)]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("context", [0, 2, 12])
def test_frames_agree_with_utterances_masked_by_hand(
    prep: Prep, monkeypatch: pytest.MonkeyPatch, context: int, mapped: bool
) -> None:
    if mapped:
        monkeypatch.setattr(frames_module, "RESIDENT_BYTES", 0)
    alone = FrameSource(prep, Part.TRAIN, context=0)
    source = FrameSource(prep, Part.TRAIN, context=context, augment=MASKS)
    hidden = 0
    for epoch in range(20):
        expected = spliced(by_hand(alone, epoch), context, context)
        x, y = source.epoch_batch(np.arange(len(source)), epoch)
        assert torch.equal(x, expected)
        clean, states = source.batch(np.arange(len(source)))
        assert torch.equal(y, states)
        hidden += int((x != clean).sum())
    assert hidden > 0


def test_chunks_agree_with_utterances_masked_by_hand(prep: Prep) -> None:
    alone = FrameSource(prep, Part.TRAIN, context=0)
    source = ChunkSource(prep, Part.TRAIN, chunk=2, left=3, right=1, augment=MASKS)
    for epoch in range(5):
        rows = spliced(by_hand(alone, epoch), 3, 2)
        starts = np.cumsum([0, *(len(alone.whole(u)[1]) for u in range(len(alone.utterances)))])
        first = [t for a, b in itertools.pairwise(starts) for t in range(a, b, 2)]
        x, y = source.epoch_batch(np.arange(len(source)), epoch)
        assert torch.equal(x.flatten(1), rows[first])
        assert torch.equal(y, source.batch(np.arange(len(source)))[1])


def test_masks_depend_on_seed_epoch_and_utterance_alone(prep: Prep) -> None:
    one = FrameSource(prep, Part.TRAIN, context=1, augment=MASKS)
    other = FrameSource(prep, Part.TRAIN, context=1, augment=MASKS)
    everything = np.arange(len(one))
    epochs = [one.epoch_batch(everything, epoch)[0] for epoch in range(4)]
    for epoch in (2, 0, 3, 1, 0):  # another learner, in another order, another grouping
        order = np.random.default_rng(epoch).permutation(len(other))
        for piece in np.array_split(order, 5):
            assert torch.equal(other.epoch_batch(piece, epoch)[0], epochs[epoch][piece])
    assert not torch.equal(epochs[0], epochs[1])
    reseeded = FrameSource(prep, Part.TRAIN, context=1, augment=replace(MASKS, seed=8))
    assert not torch.equal(reseeded.epoch_batch(everything, 0)[0], epochs[0])


@pytest.mark.parametrize(("masks", "width"), [(1, 0), (1, 5), (1, 30), (3, 5)])
def test_the_share_that_is_hidden_is_what_the_formula_says(masks: int, width: int) -> None:
    """A mask's width is W/2 on average, and each width up to W is equally likely."""
    utterances, frames, bands = 4000, 30, 12
    settings = SpecAugment(
        frequency_masks=0, frequency_width=1, time_masks=masks, time_width=max(width, 1),
        time_share=width / frames, seed=1,
    )  # fmt: skip
    drawn = UtteranceMasks(settings, np.full(utterances, frames), bands)
    x = torch.ones(utterances, frames, bands)
    places = np.broadcast_to(np.arange(frames), (utterances, frames))
    drawn.hide(x, np.arange(utterances), places, 0)
    hidden = (x == 0).all(2).sum(1)
    assert torch.equal(hidden, (x == 0).any(2).sum(1))  # whole frames or none
    if masks == 1:
        counts = np.bincount(hidden.numpy(), minlength=width + 1)
        assert len(counts) == width + 1
        expected = utterances / (width + 1)
        # Chi-squared of W degrees of freedom, 5 standard deviations above its mean.
        assert ((counts - expected) ** 2 / expected).sum() <= width + 5 * (2 * width) ** 0.5
    else:
        assert 0 < hidden.float().mean() < masks * width / 2


def test_an_utterance_may_be_too_short_to_lose_a_frame() -> None:
    settings = replace(MASKS, frequency_masks=0, time_share=0.3)
    masks = UtteranceMasks(settings, np.array([1, 2, 3]), 4)
    x = torch.ones(3, 3, 4)
    masks.hide(x, np.arange(3), np.array([[0, 0, 0], [0, 1, 1], [0, 1, 2]]), 5)
    assert bool((x == 1).all())
