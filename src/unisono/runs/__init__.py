"""What a run leaves behind: its directory, metrics and summary."""

from __future__ import annotations

from unisono.runs.directory import RunDirectory, write_atomically
from unisono.runs.metrics import Event, cut_torn_line, format_event, read_metrics
from unisono.runs.summary import Exchanges, Minibatches, Staleness, Summary

__all__ = [
    "Event",
    "Exchanges",
    "Minibatches",
    "RunDirectory",
    "Staleness",
    "Summary",
    "cut_torn_line",
    "format_event",
    "read_metrics",
    "write_atomically",
]
