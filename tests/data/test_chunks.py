"""Every frame is labelled once, among its own utterance's frames, whatever the chunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.data import UNLABELLED, ChunkSource, Corpus, FrameSource, Part, Prep, write_prep
from unisono.errors import UserError


@pytest.fixture
def prep(corpus: Corpus, tmp_path: Path) -> Prep:
    return write_prep(tmp_path / "prep", corpus, {})


@pytest.mark.parametrize("part", list(Part))
@pytest.mark.parametrize(("chunk", "left", "right"), [(1, 0, 0), (3, 2, 1), (4, 0, 7), (20, 3, 3)])
def test_chunks_are_frames_in_a_row(
    prep: Prep, part: Part, chunk: int, left: int, right: int
) -> None:
    source = ChunkSource(prep, part, chunk=chunk, left=left, right=right)
    alone = FrameSource(prep, part, context=0)
    lengths = [len(alone.whole(u)[1]) for u in range(len(alone.utterances))]
    assert len(source) == sum(-(-n // chunk) for n in lengths)
    x, y = source.batch(np.arange(len(source)))
    assert x.shape == (len(source), left + chunk + right, prep.header.dimension)
    assert y.shape == (len(source), chunk)
    at = 0
    for u, length in enumerate(lengths):
        frames, states = alone.whole(u)
        for start in range(0, length, chunk):
            for place in range(-left, chunk + right):
                t = start + place
                assert torch.equal(x[at, left + place], frames[min(max(t, 0), length - 1)])
                if 0 <= place < chunk:
                    assert int(y[at, place]) == (int(states[t]) if t < length else UNLABELLED)
            at += 1
    assert int((y != UNLABELLED).sum()) == sum(lengths)


def test_a_whole_utterance_is_one_chunk(prep: Prep) -> None:
    source = ChunkSource(prep, Part.TRAIN, chunk=3, left=2, right=1)
    alone = FrameSource(prep, Part.TRAIN, context=0)
    for u in range(len(alone.utterances)):
        x, y = source.whole(u)
        frames, states = alone.whole(u)
        assert torch.equal(y[0], states)
        assert torch.equal(x[0, 2:-1], frames)
        assert torch.equal(x[0, 0], frames[0])
        assert torch.equal(x[0, -1], frames[-1])


def test_any_grouping_gives_the_same_chunks(prep: Prep) -> None:
    source = ChunkSource(prep, Part.TRAIN, chunk=2, left=1, right=1)
    x, y = source.batch(np.arange(len(source)))
    order = np.random.default_rng(0).permutation(len(source))
    shuffled = source.batch(order)
    assert torch.equal(shuffled[0], x[order])
    assert torch.equal(shuffled[1], y[order])


def test_numbers_outside_are_refused(prep: Prep) -> None:
    source = ChunkSource(prep, Part.TRAIN, chunk=2, left=1, right=1)
    for wrong in (-1, len(source)):
        with pytest.raises(IndexError):
            source.batch(np.array([wrong]))
    with pytest.raises(IndexError):
        source.whole(99)
    for chunk, left, right in ((0, 1, 1), (2, -1, 0), (2, 0, -1)):
        with pytest.raises(UserError, match="chunks of"):
            ChunkSource(prep, Part.TRAIN, chunk=chunk, left=left, right=right)
