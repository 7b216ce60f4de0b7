"""What a learner says about itself, about once a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from unisono.learner.session import Session

PERIOD = 1.0
"""Seconds between two ``train`` events."""


class Meter:
    """Counts examples and waiting; reports what happened since the last report."""

    def __init__(self) -> None:
        self.examples = 0
        self.data_wait_s = 0.0
        self.round_wait_s = 0.0
        self._session: Session[Any] | None = None
        self._now: Callable[[], float] = lambda: 0.0

    def start(self, session: Session[Any]) -> None:
        """A life of the learner begins."""
        self._session = session
        self._now = session.fabric.now
        self._loss: torch.Tensor | None = None
        self._losses = 0
        self._since = self._now()
        self._examples_before = self.examples
        self._data_before = 0.0
        self._round_before = 0.0

    def loss(self, loss: torch.Tensor) -> None:
        """Adds up losses where they are; nothing is read from a device here."""
        loss = loss.detach()
        self._loss = loss if self._loss is None else self._loss + loss
        self._losses += 1

    def trained(self, examples: int) -> bool:
        """A minibatch is done; says whether it is time for a report."""
        self.examples += examples
        return self._now() - self._since >= PERIOD

    def report(self, progress: float, global_examples: int, learning_rate: float) -> None:
        """One ``train`` event about the time since the last."""
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
