"""Log-prob and accuracy of a model on frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from unisono.data import UNLABELLED, Source
from unisono.pool.order import Order

_NUMBERS = 1 << 20
"""Inputs at a time, about."""


@dataclass(frozen=True)
class Score:
    """Means a frame; the log-prob is in nats."""

    logprob: float
    accuracy: float


def score(model: nn.Module, source: Source, examples: int, device: torch.device) -> Score:
    """Scores a fixed random choice of ``examples`` frames or chunks (0: all of them)."""
    count = len(source) if examples == 0 else min(examples, len(source))
    chosen = np.sort(Order(len(source), seed=0).indices(0, 0, count))
    size = max(1, _NUMBERS // source.batch(chosen[:1])[0].numel())
    logprob = torch.zeros((), dtype=torch.float64, device=device)
    right, frames = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
    training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, count, size):
            x, y = (t.to(device) for t in source.batch(chosen[start : start + size]))
            logits, y = model(x).flatten(0, -2), y.flatten()
            logprob -= functional.cross_entropy(logits, y, reduction="sum").double()
            right += (logits.argmax(1) == y).sum()
            frames += (y != UNLABELLED).sum()
    model.train(training)
    return Score(float(logprob) / int(frames), int(right) / int(frames))
