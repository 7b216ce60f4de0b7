"""Log-prob and accuracy of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unisono.data import ChunkSource, FrameSource, Source, UtteranceSource, halve
from unisono.pool.order import Order
from unisono.training.builders import Examples
from unisono.training.objective import Objective

HALVES = ("choice", "report")
"""What each of the two halves of the held-out speakers is for: names in ``validation`` events."""

_NUMBERS = 1 << 20
"""Inputs at a time, about."""


@dataclass(frozen=True)
class Score:
    """Means: the log-prob a frame, in nats, the accuracy a label. Of none, they are NaN.

    A frame has one label, its state; an utterance of CTC has its phones.
    """

    logprob: float
    accuracy: float
    frames: int
    labels: int


def score(
    objective: Objective, model: nn.Module, source: Source, examples: int, device: torch.device
) -> Score:
    """Scores a fixed random choice of ``examples`` examples (0: all of them)."""
    everyone = np.zeros(len(source), dtype=np.int64)
    return score_groups(objective, model, source, everyone, examples, device)[0]


def score_groups(
    objective: Objective,
    model: nn.Module,
    source: Source,
    group: NDArray[np.int64],
    examples: int,
    device: torch.device,
) -> list[Score]:
    """As ``score``, for each group of examples apart: example i is of ``group[i]``, from 0.

    The examples are those of ``score``, whatever the groups are.
    """
    groups = int(group.max()) + 1
    count = len(source) if examples == 0 else min(examples, len(source))
    chosen = np.sort(Order(len(source), seed=0).indices(0, 0, count))
    of = torch.from_numpy(group[chosen]).to(device)
    size = max(1, _NUMBERS // source.batch(chosen[:1])[0].numel())
    sums = torch.zeros(4, groups, dtype=torch.float64, device=device)
    training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, count, size):
            x, y = (t.to(device) for t in source.batch(chosen[start : start + size]))
            found = objective.measure(model, x, y)
            here = of[start : start + size].repeat_interleave(len(found.logprob) // len(y))
            columns = (found.logprob, found.right, found.frames, found.labels)
            for total, column in zip(sums, columns, strict=True):
                total.index_add_(0, here, column.double())
    model.train(training)
    return [
        Score(_mean(logprob, frames), _mean(right, labels), int(frames), int(labels))
        for logprob, right, frames, labels in sums.T.tolist()
    ]


def sample(source: Source, size: int, count: int, device: torch.device) -> list[torch.Tensor]:
    """Inputs of ``count`` minibatches, at most, of examples chosen at random, always the same."""
    chosen = Order(len(source), seed=1).indices(0, 0, min(size * count, len(source)))
    starts = range(0, len(chosen) - size + 1, size) or range(1)
    return [source.batch(np.sort(chosen[a : a + size]))[0].to(device) for a in starts]


def merge(scores: Sequence[Score]) -> Score:
    """The score of all frames together."""
    frames, labels = (sum(getattr(part, name) for part in scores) for name in ("frames", "labels"))
    seen = [part for part in scores if part.frames]
    return Score(
        _mean(sum(part.logprob * part.frames for part in seen), frames),
        _mean(sum(part.accuracy * part.labels for part in seen if part.labels), labels),
        frames,
        labels,
    )


def halves(source: Examples) -> NDArray[np.int64]:
    """For each example 0, if its speaker is of those to choose by, or 1, of those to report.

    Raises:
        UserError: fewer than two speakers.
    """
    frames = source if isinstance(source, FrameSource) else source.frames
    table, starts = frames.prep.table, frames.prep.starts
    choosing, _ = halve(table.speakers[table.speaker[u]] for u in frames.utterances)
    utterances = frames.utterances if isinstance(source, ChunkSource) else source.utterances
    names = [table.speakers[table.speaker[u]] for u in utterances]
    half = np.array([name not in choosing for name in names], dtype=np.int64)
    if isinstance(source, UtteranceSource):
        return half
    lengths = starts[utterances + 1] - starts[utterances]
    if isinstance(source, ChunkSource):
        lengths = -(-lengths // source.chunk)
    return np.repeat(half, lengths)


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan
