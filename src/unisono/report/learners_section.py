"""The report's section on the learners of a run: how fast each is, and what it waits for."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from unisono.config import dump
from unisono.report.axes import Quantity, duration, make_axis, short
from unisono.report.charts import Bar, Line, Look, bar_chart, colour_of, line_chart
from unisono.report.history import History, Mark, Track, thin
from unisono.report.page import bullets, charts, folded, legend

_COLOURED = 6
"""Learners that get a colour of their own; among more, only the slowest is set off."""

_ROWS = 32
"""Learners that get a row of their own; among more, the slowest do."""


def learners(history: History, colour: int | None) -> list[str]:
    """Returns the section as HTML.

    Args:
        history: the run.
        colour: number of the run's colour, where there are several.
    """
    tracks = history.tracks()
    swatch = "" if colour is None else f'<span class="swatch" style="{colour_of(colour)}"></span>'
    title = "Learners" if colour is None else history.name
    parts = [f"<h2>{swatch}{escape(title)}</h2>"]
    if history.lines:
        parts.append(bullets(history.lines))
    if tracks:
        slow = min(tracks, key=lambda track: track.speed)
        marks = history.marks()
        parts.append(f"<p>{escape(_verdict(tracks, slow))}</p>")
        parts.append(_legend(tracks, slow))
        parts.append(charts([_rates(tracks, slow, marks), _waits(tracks, slow)]))
        if marks:
            parts.append(bullets([_tell(mark) for mark in marks]))
    if not history.own_loop:
        parts.append(folded("Configuration", dump(history.config)))
    return parts


def _verdict(tracks: Sequence[Track], slow: Track) -> str:
    """Says who is slowest, and whether that matters."""
    speed = f"{short(slow.speed)} examples a second of computing"
    if len(tracks) == 1:
        return f"Learner {slow.name} trained {speed}."
    others = statistics.median(track.speed for track in tracks if track is not slow)
    if slow.speed >= 0.95 * others:
        return f"Slowest: learner {slow.name} with {speed}; the others are as fast within 5 %."
    share = f"{slow.speed / others:.2f} times the median of the others"
    return f"Slowest: learner {slow.name} with {speed}, {share}."


def _legend(tracks: Sequence[Track], slow: Track) -> str:
    entries = [
        ("block computing", "", "computing"),
        ("block data", "", "waiting for data"),
        ("block rounds", "", "waiting for others"),
    ]
    if len(tracks) > _COLOURED:
        lines = [("faint", colour_of(None), "each learner")]
        lines.append(("", colour_of(1), f"slowest: learner {slow.name}"))
    else:
        lines = [("", colour_of(i), f"learner {track.name}") for i, track in enumerate(tracks)]
    return legend(lines + entries)


def _rates(tracks: Sequence[Track], slow: Track, marks: Sequence[Mark]) -> str:
    many = len(tracks) > _COLOURED
    lines: list[Line] = []
    for i, track in enumerate(tracks):
        pieces = [thin(piece, 80 if many else 150) for piece in track.rate]
        name = f"learner {track.name}"
        if not many:
            lines.append(Line(name, pieces, i, Look.THIN))
        elif track is not slow:
            lines.append(Line(name, pieces, None, Look.FAINT))
        else:
            slowest = Line(name, pieces, 1)
    if many:
        lines.append(slowest)
    points = [point for line in lines for piece in line.curve for point in piece]
    times = [point[0] for point in points] + [mark.time for mark in marks]
    x = make_axis("training time", times, Quantity.TIME, zero=True, snug=True, most=8)
    y = make_axis("examples/s", (point[1] for point in points), Quantity.COUNT, zero=True)
    return line_chart("Rate of each learner", x, y, lines, marks)


def _waits(tracks: Sequence[Track], slow: Track) -> str:
    title = "Where each learner's time went"
    shown = list(tracks)
    if len(tracks) > _ROWS:
        shown = sorted(tracks, key=lambda track: track.speed)[:_ROWS]
        title += f" (the {_ROWS} slowest of {len(tracks)})"
    return bar_chart(title, [_bar(track, len(tracks) > 1 and track is slow) for track in shown])


def _bar(track: Track, slowest: bool) -> Bar:
    whole = max(track.seconds, track.data_wait_s + track.round_wait_s) or 1.0
    data, rounds = track.data_wait_s / whole, track.round_wait_s / whole
    shares = [("computing", 1.0 - data - rounds), ("data", data), ("rounds", rounds)]
    rate = track.examples / whole
    note = f"{short(rate)} examples/s"
    return Bar(f"learner {track.name}", shares, note, slowest)


def _tell(mark: Mark) -> str:
    verb = "lost" if mark.lost else "joined"
    reason = f": {mark.reason}" if mark.reason else ""
    return f"after {duration(mark.time)}: learner {mark.learner} {verb}{reason}"
