"""timeline.svg: what the learners of simulated runs do in the middle of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unisono.report.timeline_picture import TimelinePanel, TimelineRow, timeline_picture
from unisono.runs.directory import write_atomically
from unisono.simulation.timeline import Timeline
from unisono.text import counted
from unisono.training.cluster_timing import ClusterTiming

TIMELINE = "timeline.svg"
ROUNDS = 2.5
"""Shown, at least."""
MINIBATCHES = 20
"""Of a learner shown, at least."""


def write_timelines(out: Path, runs: Sequence[tuple[str, ClusterTiming, Timeline]]) -> None:
    """Draws runs below each other.

    Args:
        out: the directory.
        runs: the title of each, what it took, and what its learners did.
    """
    panels = [_panel(title, took, timeline) for title, took, timeline in runs]
    picture = timeline_picture("What the learners do (simulated)", panels)
    write_atomically(out / TIMELINE, picture.encode())


def _panel(title: str, took: ClusterTiming, timeline: Timeline) -> TimelinePanel:
    timing = took.timing
    ends = [end for spans in timeline.computing.values() for _, end in spans]
    begins = [begin for spans in timeline.computing.values() for begin, _ in spans]
    first, last = min(begins, default=0.0), max(ends, default=1.0)
    between = timing.seconds / max(timing.rounds, 1.0)
    minibatch = timing.seconds * timing.learners / max(sum(timing.minibatches), 1)
    length = min(max(ROUNDS * between, MINIBATCHES * minibatch), last - first)
    begin = first + (last - first - length) / 2
    rows = [
        TimelineRow(_name(took, number), spans, timeline.exchanging.get(number, ()))
        for number, spans in sorted(timeline.computing.items())
    ]
    more = timing.learners - len(rows)
    shown = f" (the first {len(rows)} of {counted(timing.learners, 'learner')})" if more else ""
    return TimelinePanel(f"{title}{shown}", rows, begin, begin + length)


def _name(took: ClusterTiming, number: int) -> str:
    """The host, with the number of the learner on it where there are several."""
    host = took.places[number]
    if host.learners == 1:
        return host.name
    return f"{host.name} {number - took.places.index(host)}"
