"""Counts of steps that were not finite, made on a GPU and read without waiting for it."""

from __future__ import annotations

import torch

PERIOD = 8
"""Steps from one reading to the next."""


class SkipCounts:
    """Counts captured steps that were not taken.

    The counts are read a period late, when they have long been copied. A learner that is so far
    ahead of its GPU waits for it: at most two periods of steps are queued.

    Attributes:
        skipped: All of them.
        in_a_row: Those since the last one that was taken.
    """

    def __init__(self, device: torch.device) -> None:
        self.skipped = self.in_a_row = 0
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)
        self._host = torch.zeros(2, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._copied: torch.cuda.Event | None = None
        self._steps = 0

    def count(self, not_finite: torch.Tensor) -> None:
        """Counts a step, on the device; 1: it is not taken, 0: it is."""
        skipped = not_finite.to(self._counts.dtype)
        self._counts.add_(skipped)
        self._counts[1].mul_(skipped)

    def look(self) -> None:
        """After each step: reads, once a period, what the counts were a period ago."""
        self._steps += 1
        if self._steps % PERIOD == 0:
            self.flush(wait=False)

    def flush(self, *, wait: bool = True) -> None:
        """Reads the counts; if asked to, those of now."""
        if self._copied is not None:
            self._take()
        self._host.copy_(self._counts, non_blocking=True)
        if self._counts.is_cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        if wait or not self._counts.is_cuda:
            self._take()

    def _take(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        self.skipped, self.in_a_row = map(int, self._host.tolist())
