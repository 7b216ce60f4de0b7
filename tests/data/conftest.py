"""A small corpus by hand, and a small net to see whether frames can be learned."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from unisono.data import Corpus, FrameSource, Part, Prep
from unisono.pool.order import Order

Fit = Callable[..., tuple[float, float]]


@pytest.fixture
def corpus() -> Corpus:
    """Seven utterances by four speakers; utterances of 1 to 9 frames, parts interleaved."""
    random = np.random.default_rng(5)
    lengths = [4, 1, 9, 2, 7, 3, 5]
    frames = sum(lengths)
    return Corpus(
        origin="by hand",
        frames=random.normal(10, 3, (frames, 3)).astype(np.float16),
        states=random.integers(0, 6, frames).astype(np.int32),
        starts=np.cumsum([0, *lengths], dtype=np.int32),
        utterances=["a1", "c1", "b1", "a2", "d1", "c2", "b2"],
        speakers=["ann", "cy", "bob", "ann", "di", "cy", "bob"],
        parts=[Part(p) for p in ["train", "heldout", "train", "train", "test", "heldout", "train"]],
        state_count=7,
        frame_shift=timedelta(milliseconds=10),
    )


@pytest.fixture
def fit() -> Fit:
    """Trains a net on a PREP's train part; returns held-out cross-entropy and accuracy."""

    def fit(
        prep: Prep, *, context: int, layers: int, hidden: int, steps: int
    ) -> tuple[float, float]:
        torch.manual_seed(0)
        train = FrameSource(prep, Part.TRAIN, context=context)
        widths = [train.dimension] + [hidden] * layers
        body = [
            module
            for into, out in itertools.pairwise(widths)
            for module in (torch.nn.Linear(into, out), torch.nn.ReLU())
        ]
        net = torch.nn.Sequential(*body, torch.nn.Linear(widths[-1], prep.header.states))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.002)
        order, size = Order(len(train), seed=0), 256
        for step in range(steps):
            epoch, place = divmod(step, len(train) // size)
            x, y = train.batch(order.indices(epoch, place * size, (place + 1) * size))
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        heldout = FrameSource(prep, Part.HELDOUT, context=context)
        loss = right = 0.0
        with torch.no_grad():
            for x, y in heldout.batches(2048):
                scores = net(x)
                loss += float(cross_entropy(scores, y, reduction="sum"))
                right += float((scores.argmax(1) == y).sum())
        return loss / len(heldout), right / len(heldout)

    return fit
