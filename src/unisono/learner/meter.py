"""The ``train`` event of a learner, about once a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from unisono.learner.session import Session

PERIOD = 1.0
"""Seconds between two ``train`` events."""


class Meter:
    """Counts examples and seconds of waiting for the ``train`` event."""

    def __init__(self) -> None:
        self.examples = 0
        self.data_wait_s = 0.0
        self.round_wait_s = 0.0
        self._session: Session[Any] | None = None
        self._now: Callable[[], float] = lambda: 0.0

    def start(self, session: Session[Any]) -> None:
        """Begins to measure an incarnation of the learner."""
        self._session = session
        self._now = session.fabric.now
        self._loss: torch.Tensor | None = None
        self._losses = 0
        self._since = self._now()
        self._examples_before = self.examples
        self._data_before = 0.0
        self._round_before = 0.0

    def loss(self, loss: torch.Tensor) -> None:
        """Adds up losses on their device, without reading them."""
        loss = loss.detach()
        self._loss = loss if self._loss is None else self._loss + loss
        self._losses += 1

    def trained(self, examples: int) -> bool:
        """Counts a minibatch; returns whether a report is due."""
        self.examples += examples
        return self._now() - self._since >= PERIOD

    def report(self, progress: float, global_examples: int, learning_rate: float) -> None:
        """Writes a ``train`` event for the time since the last one."""
        session = self._session
        if session is None or self._losses == 0 or self._loss is None:
            return
        now, data = self._now(), session.stepper.data_wait_s
        rounds = session.participant.wait_s
        seconds = max(now - self._since, 1e-9)
        session.replica.event(
            "train",
            examples=self.examples,
            global_examples=global_examples,
            progress=progress,
            loss=float(self._loss) / self._losses,
            rate=(self.examples - self._examples_before) / seconds,
            data_wait_s=data - self._data_before,
            round_wait_s=rounds - self._round_before,
            staleness=0,
            learning_rate=learning_rate,
        )
        self.data_wait_s += data - self._data_before
        self.round_wait_s += rounds - self._round_before
        self._since, self._examples_before = now, self.examples
        self._data_before, self._round_before = data, rounds
        self._loss, self._losses = None, 0
