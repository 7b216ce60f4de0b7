"""What the commands do: train, bench, demo, and starting the processes of a run."""

from __future__ import annotations
