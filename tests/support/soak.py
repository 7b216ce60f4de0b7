"""How much of what can be repeated without end the long tests repeat."""

from __future__ import annotations

import os

SOAK = int(os.environ.get("UNISONO_SOAK", "1"))
"""`make test-long` has 1, `make test-soak` 20: schedules, repetitions and kills grow with it."""
