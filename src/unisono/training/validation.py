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

from unisono.data import FrameSource, halve
from unisono.pool.order import Order

HALVES = ("choice", "report")
"""What each of the two halves of the held-out speakers is for: names in ``validation`` events."""

_SIZE = 2048


@dataclass(frozen=True)
class Score:
    """Means a frame; the log-prob is in nats. Of no frames, both are NaN."""

    logprob: float
    accuracy: float
    frames: int


def score(model: nn.Module, source: FrameSource, examples: int, device: torch.device) -> Score:
    """Scores a fixed random choice of ``examples`` frames (0: all of them)."""
    everyone = np.zeros(len(source), dtype=np.int64)
    return score_groups(model, source, everyone, examples, device)[0]


def score_groups(
    model: nn.Module,
    source: FrameSource,
    group: NDArray[np.int64],
    examples: int,
    device: torch.device,
) -> list[Score]:
    """As ``score``, for each group of frames apart: frame i is of ``group[i]``, from 0.

    The frames are those of ``score``, whatever the groups are.
    """
    groups = int(group.max()) + 1
    count = len(source) if examples == 0 else min(examples, len(source))
    chosen = np.sort(Order(len(source), seed=0).indices(0, 0, count))
    of = torch.from_numpy(group[chosen]).to(device)
    logprob = torch.zeros(groups, dtype=torch.float64, device=device)
    right = torch.zeros(groups, dtype=torch.float64, device=device)
    training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, count, _SIZE):
            x, y = (t.to(device) for t in source.batch(chosen[start : start + _SIZE]))
            here, logits = of[start : start + _SIZE], model(x)
            losses = functional.cross_entropy(logits, y, reduction="none")
            logprob.index_add_(0, here, losses.double(), alpha=-1)
            right.index_add_(0, here, (logits.argmax(1) == y).double())
    model.train(training)
    frames = torch.bincount(of, minlength=groups).tolist()
    sums = zip(logprob.tolist(), right.tolist(), frames, strict=True)
    return [Score(_mean(total, n), _mean(hits, n), n) for total, hits, n in sums]


def merge(scores: Sequence[Score]) -> Score:
    """The score of all frames together."""
    frames = sum(part.frames for part in scores)
    seen = [part for part in scores if part.frames]
    return Score(
        _mean(sum(part.logprob * part.frames for part in seen), frames),
        _mean(sum(part.accuracy * part.frames for part in seen), frames),
        frames,
    )


def halves(source: FrameSource) -> NDArray[np.int64]:
    """For each frame 0, if its speaker is of those to choose by, or 1, of those to report.

    Raises:
        UserError: fewer than two speakers.
    """
    table, starts = source.prep.table, source.prep.starts
    names = [table.speakers[table.speaker[u]] for u in source.utterances]
    choosing, _ = halve(names)
    half = np.array([name not in choosing for name in names], dtype=np.int64)
    return np.repeat(half, starts[source.utterances + 1] - starts[source.utterances])


def _mean(total: float, frames: int) -> float:
    return total / frames if frames else math.nan
