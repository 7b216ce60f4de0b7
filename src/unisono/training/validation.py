"""Log-prob and accuracy of a model on frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from unisono.data import UNLABELLED, ChunkSource, FrameSource, Source, halve
from unisono.pool.order import Order

HALVES = ("choice", "report")
"""What each of the two halves of the held-out speakers is for: names in ``validation`` events."""

_NUMBERS = 1 << 20
"""Inputs at a time, about."""


@dataclass(frozen=True)
class Score:
    """Means a frame; the log-prob is in nats. Of no frames, both are NaN."""

    logprob: float
    accuracy: float
    frames: int


def score(model: nn.Module, source: Source, examples: int, device: torch.device) -> Score:
    """Scores a fixed random choice of ``examples`` frames or chunks (0: all of them)."""
    everyone = np.zeros(len(source), dtype=np.int64)
    return score_groups(model, source, everyone, examples, device)[0]


def score_groups(
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
    logprob, right, frames = torch.zeros(3, groups, dtype=torch.float64, device=device)
    training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, count, size):
            x, y = (t.to(device) for t in source.batch(chosen[start : start + size]))
            here = of[start : start + size].repeat_interleave(y.numel() // len(y))
            logits, y = model(x).flatten(0, -2), y.flatten()
            losses = functional.cross_entropy(logits, y, reduction="none")
            logprob.index_add_(0, here, losses.double(), alpha=-1)
            right.index_add_(0, here, (logits.argmax(1) == y).double())
            frames.index_add_(0, here, (y != UNLABELLED).double())
    model.train(training)
    sums = zip(logprob.tolist(), right.tolist(), frames.long().tolist(), strict=True)
    return [Score(_mean(total, n), _mean(hits, n), n) for total, hits, n in sums]


def sample(source: Source, size: int, count: int, device: torch.device) -> list[torch.Tensor]:
    """Inputs of ``count`` minibatches, at most, of examples chosen at random, always the same."""
    chosen = Order(len(source), seed=1).indices(0, 0, min(size * count, len(source)))
    starts = range(0, len(chosen) - size + 1, size) or range(1)
    return [source.batch(np.sort(chosen[a : a + size]))[0].to(device) for a in starts]


def merge(scores: Sequence[Score]) -> Score:
    """The score of all frames together."""
    frames = sum(part.frames for part in scores)
    seen = [part for part in scores if part.frames]
    return Score(
        _mean(sum(part.logprob * part.frames for part in seen), frames),
        _mean(sum(part.accuracy * part.frames for part in seen), frames),
        frames,
    )


def halves(source: FrameSource | ChunkSource) -> NDArray[np.int64]:
    """For each example 0, if its speaker is of those to choose by, or 1, of those to report.

    Raises:
        UserError: fewer than two speakers.
    """
    frames = source.frames if isinstance(source, ChunkSource) else source
    table, starts = frames.prep.table, frames.prep.starts
    names = [table.speakers[table.speaker[u]] for u in frames.utterances]
    choosing, _ = halve(names)
    half = np.array([name not in choosing for name in names], dtype=np.int64)
    lengths = starts[frames.utterances + 1] - starts[frames.utterances]
    if isinstance(source, ChunkSource):
        lengths = -(-lengths // source.chunk)
    return np.repeat(half, lengths)


def _mean(total: float, frames: int) -> float:
    return total / frames if frames else math.nan
