"""A frame comes with its own utterance's neighbours, normalised by its speaker, in any grouping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.data import Corpus, FrameSource, Part, Prep, write_prep
from unisono.data import frames as frames_module
from unisono.errors import UserError


@pytest.fixture
def prep(corpus: Corpus, tmp_path: Path) -> Prep:
    return write_prep(tmp_path / "prep", corpus, {})


@pytest.fixture(params=["resident", "streamed", "device"])
def source(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., FrameSource]:
    """Makes sources that keep their frames in memory, in the file, or on a device."""
    if request.param != "resident":
        monkeypatch.setattr(frames_module, "RESIDENT_BYTES", 0)
    device = torch.device("cpu") if request.param == "device" else None

    def make(prep: Prep, part: Part, context: int) -> FrameSource:
        made = FrameSource(prep, part, context=context, device=device)
        kind = type(made._gather).__name__
        assert kind == ("MappedFrames" if request.param == "streamed" else "DeviceFrames")
        return made

    return make


def by_hand(prep: Prep, part: Part, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole part, one frame and one neighbour at a time."""
    rows, states = [], []
    for u, of in enumerate(prep.table.part):
        if of is not part:
            continue
        said = np.array(prep.frames[prep.starts[u] : prep.starts[u + 1]], dtype=np.float32)
        speaker = prep.table.speaker[u]
        normal = (said - prep.speaker_mean[speaker]) / prep.speaker_std[speaker]
        for t in range(len(normal)):
            near = [min(max(t + d, 0), len(normal) - 1) for d in range(-context, context + 1)]
            rows.append(np.concatenate([normal[k] for k in near]))
            states.append(int(prep.states[prep.starts[u] + t]))
    return torch.from_numpy(np.stack(rows)), torch.tensor(states)


@pytest.mark.parametrize("context", [0, 1, 2, 12])
@pytest.mark.parametrize("part", list(Part))
@pytest.mark.parametrize("narrow", [True, False])
def test_agrees_with_frames_gathered_by_hand(
    corpus: Corpus,
    tmp_path: Path,
    source: Callable[..., FrameSource],
    part: Part,
    context: int,
    narrow: bool,
) -> None:
    if not narrow:
        corpus = replace(corpus, frames=corpus.frames.astype(np.float32), state_count=40_000)
    prep = write_prep(tmp_path / "prep", corpus, {})
    frames = source(prep, part, context)
    x, y = by_hand(prep, part, context)
    assert len(frames) == len(y)
    assert frames.dimension == (2 * context + 1) * 3
    indices = np.random.default_rng(0).integers(0, len(frames), 50)
    got_x, got_y = frames.batch(indices)
    # Elementwise arithmetic in a fixed order: not merely close, the same bits.
    torch.testing.assert_close(got_x, x[indices], rtol=0, atol=0)
    torch.testing.assert_close(got_y, y[indices], rtol=0, atol=0)
    assert got_x.is_contiguous()


def test_batches_and_utterances_come_in_order(
    prep: Prep, source: Callable[..., FrameSource]
) -> None:
    frames = source(prep, Part.TRAIN, 1)
    expected = by_hand(prep, Part.TRAIN, 1)
    batches = list(frames.batches(6))
    assert [len(y) for _, y in batches] == [6, 6, 6, 2]
    wholes = [frames.whole(u) for u in range(4)]
    assert [len(y) for _, y in wholes] == [4, 9, 2, 5]
    assert frames.utterances.tolist() == [0, 2, 3, 6]
    for pieces in (batches, wholes):
        for k in range(2):
            joined = torch.cat([piece[k] for piece in pieces])
            torch.testing.assert_close(joined, expected[k], rtol=0, atol=0)


def test_a_batch_is_a_copy(prep: Prep, source: Callable[..., FrameSource]) -> None:
    frames = source(prep, Part.TRAIN, 1)
    before = frames.batch(np.arange(20))[0].clone()
    frames.batch(np.arange(20))[0].zero_()
    torch.testing.assert_close(frames.batch(np.arange(20))[0], before, rtol=0, atol=0)


def test_any_array_of_numbers_will_do(prep: Prep, source: Callable[..., FrameSource]) -> None:
    frames = source(prep, Part.TRAIN, 2)
    backwards = np.arange(20, dtype=np.int32)[::-1]
    x, y = frames.batch(backwards)
    torch.testing.assert_close(x.flip(0), frames.batch(np.arange(20))[0], rtol=0, atol=0)
    assert y.dtype == torch.int64
    empty, none = frames.batch(np.empty(0, dtype=np.int64))
    assert empty.shape == (0, 15)
    assert none.shape == (0,)


@pytest.mark.parametrize("index", [-1, 20])
def test_a_number_outside_the_part_is_refused(
    prep: Prep, source: Callable[..., FrameSource], index: int
) -> None:
    frames = source(prep, Part.TRAIN, 1)
    with pytest.raises(IndexError, match="of 20"):
        frames.batch(np.array([0, index]))
    with pytest.raises(IndexError, match="of 4"):
        frames.whole(4 if index > 0 else -1)


def test_a_part_without_frames_and_a_negative_context_are_refused(
    corpus: Corpus, tmp_path: Path
) -> None:
    prep = write_prep(tmp_path / "p", replace(corpus, parts=[Part.TRAIN] * 7), {})
    with pytest.raises(UserError, match="no heldout frames"):
        FrameSource(prep, Part.HELDOUT, context=1)
    with pytest.raises(UserError, match="context of -1"):
        FrameSource(prep, Part.TRAIN, context=-1)
