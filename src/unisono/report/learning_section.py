"""The report's section on learning: loss, log-prob and accuracy, all runs over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from unisono.report.axes import Axis, Quantity, make_axis
from unisono.report.charts import COLOURS, Line, Look, colour_of, line_chart
from unisono.report.history import Abscissa, History, Point, by_examples, by_time, mean_curve, thin
from unisono.report.page import charts, legend


@dataclass(frozen=True)
class Against:
    """What a curve is drawn against."""

    name: str
    title: str
    quantity: Quantity
    of: Abscissa


ABSCISSAE = (
    Against("examples", "examples of all learners", Quantity.COUNT, by_examples),
    Against("time", "training time", Quantity.TIME, by_time),
)


def learning(histories: Sequence[History]) -> list[str]:
    """Returns the section as HTML."""
    figures: list[str] = []
    for x in ABSCISSAE:
        lines = _losses(histories, x.of)
        figures += figure("Training loss", _loss_title(histories), x, lines, histories)
    for x in ABSCISSAE:
        lines = _checks(histories, "logprob", x.of)
        if len(histories) == 1:
            train = histories[0].checks("train_logprob", x.of)
            lines.insert(0, Line("training frames", train, 1, Look.DASHED, dots=True))
        figures += figure("Held-out log-prob", "log-prob (nats/frame)", x, lines, histories)
    for x in ABSCISSAE:
        lines = _checks(histories, "accuracy", x.of)
        figures += figure("Held-out accuracy", "frames right", x, lines, histories)
    for event, key in dict.fromkeys(pair for run in histories for pair in run.own_numbers()):
        for x in ABSCISSAE:
            lines = [
                Line(history.name, history.series(event, key, x.of), i, dots=True)
                for i, history in enumerate(histories)
            ]
            figures += figure(f"{event}: {key}", key, x, lines, histories)
    if not figures:
        return ["<h2>Learning</h2>", '<p class="soft">Nothing was trained yet.</p>']
    return ["<h2>Learning</h2>", _legend(histories), charts(figures)]


def _losses(histories: Sequence[History], x: Abscissa) -> list[Line]:
    """A line a run: the mean of its learners; a run alone shows each learner faintly too."""
    lines: list[Line] = []
    for i, history in enumerate(histories):
        curves = history.losses(x)
        if len(histories) == 1 and len(curves) > 1:
            for curve in curves:
                pieces = [thin(piece, 150) for piece in curve]
                lines.append(Line("one learner", pieces, i, Look.FAINT))
        lines.append(Line(history.name, mean_curve(curves), i))
    return lines


def _checks(histories: Sequence[History], key: str, x: Abscissa) -> list[Line]:
    return [
        Line(history.name, history.checks(key, x), i, dots=True)
        for i, history in enumerate(histories)
    ]


def figure(
    name: str, y_title: str, x: Against, lines: Sequence[Line], histories: Sequence[History]
) -> list[str]:
    """Draws a chart of lines of runs, or none where there is nothing to draw."""
    heights = [point[1] for line in lines for piece in line.curve for point in piece]
    if not heights:
        return []
    quantity = Quantity.SHARE if name.endswith("accuracy") else Quantity.NUMBER
    # All charts against the same thing end at the same place, so that they can be read together.
    drawn = (event for history in histories for event in history.named("train", "validation"))
    places = [x.of(event) for event in drawn]
    seen = (place for place in places if place is not None)
    across = make_axis(x.title, seen, x.quantity, zero=True, snug=True, most=8)
    up = make_axis(y_title, heights, quantity)
    # With several runs nobody could tell whose learner a mark means; each run shows its own below.
    marks = histories[0].marks() if len(histories) == 1 and x.of is by_time else []
    return [line_chart(f"{name} against {x.name}", across, up, lines, marks)]


def time_chart(title: str, lines: Sequence[Line], targets: Mapping[str, float]) -> list[str]:
    """Draws log-prob against seconds of training, and levels across it, by name."""
    if not any(piece for line in lines for piece in line.curve):
        return []
    x, y, drawn = time_axes(lines, targets)
    return [line_chart(title, x, y, drawn)]


def time_axes(lines: Sequence[Line], targets: Mapping[str, float]) -> tuple[Axis, Axis, list[Line]]:
    """Axes for log-prob against seconds of training, and the lines to draw over them.

    The upright axis begins a little below the targets, which are lines across: early points would
    leave them no room.
    """
    points = [point for line in lines for piece in line.curve for point in piece]
    end = max(point[0] for point in points)
    levels = list(targets.values())
    top = max([point[1] for point in points] + levels)
    low = min([point[1] for point in points] + levels)
    if levels:
        low = max(low, min(levels) - 4 * max(top - min(levels), 0.1))
    x = make_axis("training time", [end], Quantity.TIME, zero=True, snug=True, most=8)
    y = make_axis("log-prob (nats/frame)", [low, top], Quantity.NUMBER)
    drawn = [replace(line, curve=[_above(piece, y.low) for piece in line.curve]) for line in lines]
    across = [
        Line(name, [[(0.0, level), (end, level)]], None, Look.DASHED)
        for name, level in targets.items()
    ]
    return x, y, [*across, *drawn]


def _above(piece: Sequence[Point], floor: float) -> list[Point]:
    """The part of a line that is above a level; it begins where the line crosses it."""
    kept: list[Point] = []
    for before, after in zip([None, *piece], piece, strict=False):
        if after[1] < floor:
            continue
        if before is not None and before[1] < floor:
            share = (floor - before[1]) / (after[1] - before[1])
            kept.append((before[0] + share * (after[0] - before[0]), floor))
        kept.append(after)
    return kept


def _loss_title(histories: Sequence[History]) -> str:
    """Only of acoustic models is it known what the loss counts."""
    return "loss" if any(history.own_loop for history in histories) else "loss (nats/frame)"


def _legend(histories: Sequence[History]) -> str:
    if len(histories) > 1:
        return legend(
            [
                ("dashed" if i >= COLOURS else "", colour_of(i), history.name)
                for i, history in enumerate(histories)
            ]
        )
    if histories[0].own_loop:
        several = len(histories[0].losses(by_time)) > 1
        whose = "mean of the learners" if several else "the learner"
        return legend(
            [("", colour_of(0), whose), ("faint", colour_of(0), "each learner")][: 1 + several]
        )
    entries = [("dashed", colour_of(1), "log-prob of training frames")]
    if len(histories[0].losses(by_time)) > 1:
        entries.insert(0, ("faint", colour_of(0), "each learner"))
        entries.insert(0, ("", colour_of(0), "mean of the learners; consensus on held-out frames"))
    else:
        entries.insert(0, ("", colour_of(0), "the learner; held-out frames"))
    return legend(entries)
