"""When a learner that died is replaced."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MOST = 10
"""Replacements without a quiet time between them: more deaths than that have a reason."""
QUIET_S = 600.0
"""Seconds without a death after which earlier ones are forgotten."""


@dataclass
class Respawn:
    """Growing pauses between deaths and replacements, and a limit."""

    count: int = field(default=0, init=False)
    """Replacements since the last quiet time."""
    _last: float = field(default=0.0, init=False)

    def pause(self, now: float) -> float | None:
        """A learner has died: seconds until it is replaced; None: it is not any more."""
        if self.count and now - self._last > QUIET_S:
            self.count = 0
        self._last = now
        if self.count == MOST:
            return None
        self.count += 1
        return min(FIRST_PAUSE_S * 2.0 ** (self.count - 1), LONGEST_PAUSE_S)
