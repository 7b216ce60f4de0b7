"""Progress lines of a decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from unisono.speech.features.spectrum import SHIFT_S

_LINES = 10


class DecodingProgress:
    """Writes a line whenever another tenth of the audio is decoded.

    What is left is estimated from CPU seconds, not from a clock: on a busy machine it takes longer.
    """

    def __init__(
        self,
        label: str,
        lengths: Sequence[int],
        *,
        worker_cpu_s: Callable[[], float],
        processes: int,
        log: Callable[[str], None],
    ) -> None:
        """Begins.

        Args:
            label: What is done, the first word of each line.
            lengths: The frames of each utterance, in order.
            worker_cpu_s: The CPU seconds of worker processes so far.
            processes: How many processes work at a time.
            log: Receives the lines.
        """
        self._label = label
        self._lengths = lengths
        self._worker_cpu_s = worker_cpu_s
        self._processes = processes
        self._log = log
        self._done = self._frames = self._lines = 0
        self._before = self._cpu_s()

    def _cpu_s(self) -> float:
        return time.process_time() + self._worker_cpu_s()

    @property
    def real_time_factor(self) -> float:
        """CPU seconds a second of audio so far."""
        return (self._cpu_s() - self._before) / max(self._frames * SHIFT_S, SHIFT_S)

    def advance(self) -> None:
        """Counts the next utterance."""
        self._frames += self._lengths[self._done]
        self._done += 1
        total = sum(self._lengths)
        tenths = _LINES * self._frames // total
        if tenths > self._lines and self._done < len(self._lengths):
            self._lines = tenths
            factor = self.real_time_factor
            left = round((total - self._frames) * SHIFT_S * factor / self._processes)
            self._log(
                f"{self._label}: {self._done} of {len(self._lengths)} utterances, {factor:.2f} "
                f"times real time a core, about {timedelta(seconds=left)} left"
            )
