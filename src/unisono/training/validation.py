"""Log-prob and accuracy of a model on frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from unisono.data import FrameSource
from unisono.pool.order import Order

_SIZE = 2048


@dataclass(frozen=True)
class Score:
    """Means a frame; the log-prob is in nats."""

    logprob: float
    accuracy: float


def score(model: nn.Module, source: FrameSource, examples: int, device: torch.device) -> Score:
    """Scores a fixed random choice of ``examples`` frames (0: all of them)."""
    count = len(source) if examples == 0 else min(examples, len(source))
    chosen = np.sort(Order(len(source), seed=0).indices(0, 0, count))
    logprob = torch.zeros((), dtype=torch.float64, device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, count, _SIZE):
            x, y = (t.to(device) for t in source.batch(chosen[start : start + _SIZE]))
            logits = model(x)
            logprob -= functional.cross_entropy(logits, y, reduction="sum").double()
            right += (logits.argmax(1) == y).sum()
    model.train(training)
    return Score(float(logprob) / count, int(right) / count)
