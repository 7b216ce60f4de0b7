"""Charts as SVG text: lines with marks, and stacked bars. Colours are the page's variables.

Written by hand, since two kinds of chart in 200 lines need no package: plotting packages draw
pictures that do not follow the reader's light or dark mode, or bring megabytes of JavaScript.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape

from unisono.report.axes import Axis, short
from unisono.report.history import Curve, Mark

COLOURS = 8
"""Colours of the page, `--c0` to `--c7`; further lines use them again, dashed."""

WIDTH, HEIGHT = 560, 300
_RIGHT, _TOP, _BOTTOM = 24, 16, 44
LETTER = 6.6
"""Width of a letter, about; bold ones are wider by a tenth."""


class Look(Enum):
    """How a line is drawn; the values are classes of the page's style."""

    STRONG = "strong"
    THIN = "thin"
    FAINT = "faint"
    DASHED = "dashed"


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: what hovering tells.
        curve: its pieces.
        colour: number of its colour; None is grey.
        look: how it is drawn.
        dots: draw each point too; for lines of few points.
    """

    name: str
    curve: Curve
    colour: int | None = 0
    look: Look = Look.STRONG
    dots: bool = False


@dataclass(frozen=True)
class Bar:
    """A row of stacked bars.

    Attributes:
        name: text before it.
        shares: parts of the whole, 0..1, with the class of each.
        note: text behind it.
        marked: print the row with emphasis.
    """

    name: str
    shares: Sequence[tuple[str, float]]
    note: str
    marked: bool = False


def line_chart(
    title: str, x: Axis, y: Axis, lines: Sequence[Line], marks: Sequence[Mark] = ()
) -> str:
    """Draws lines over two axes.

    Args:
        title: the caption.
        x: the lower axis; time, where there are marks.
        y: the left axis.
        lines: drawn in this order, the last on top.
        marks: learners lost and joined, as uprights.
    """
    return _figure(title, HEIGHT, line_marks(x, y, lines, marks))


def line_marks(x: Axis, y: Axis, lines: Sequence[Line], marks: Sequence[Mark] = ()) -> list[str]:
    """What a chart of lines consists of: axes, marks and lines, as elements of SVG."""
    return [*_grid(x, y), *_marks(x, y, marks), *(_line(x, y, line) for line in lines)]


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Draws a row of stacked bars for each learner."""
    left = 16 + 1.1 * LETTER * max((len(bar.name) for bar in bars), default=0)
    right = WIDTH - 16 - 1.1 * LETTER * max((len(bar.note) for bar in bars), default=0)
    row = max(20, min(36, 240 // max(1, len(bars))))
    body: list[str] = []
    for i, bar in enumerate(bars):
        top, start = 6 + i * row, left
        kind = ' class="marked"' if bar.marked else ""
        text_y = f'y="{top + row / 2 + 3:.0f}"'
        place = f'x="{left - 8:.0f}" {text_y} text-anchor="end"'
        body.append(f"<g{kind}><text {place}>{escape(bar.name)}</text>")
        for name, share in bar.shares:
            width = max(0.0, share) * (right - left)
            place = f'x="{start:.1f}" y="{top + 2}" width="{width:.1f}" height="{row - 6}"'
            tip = f"<title>{escape(name)}: {share:.1%}</title>"
            body.append(f'<rect class="{escape(name)}" {place}>{tip}</rect>')
            start += width
        body.append(f'<text x="{right + 8:.0f}" {text_y}>{escape(bar.note)}</text></g>')
    return _figure(title, 14 + len(bars) * row, body)


def colour_of(number: int | None) -> str:
    """Returns the style that gives a line its colour."""
    return "--c: var(--grey)" if number is None else f"--c: var(--c{number % COLOURS})"


def _figure(title: str, height: int, body: Sequence[str]) -> str:
    name = escape(title)
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}"'
    return (
        f"<figure><figcaption>{name}</figcaption>\n<svg {box}>\n"
        + "\n".join(body)
        + "\n</svg></figure>"
    )


def _left(y: Axis) -> float:
    """Where the upright axis stands: its title and its longest label are left of it."""
    return max(58.0, 30 + LETTER * max((len(label) for _, label in y.ticks), default=0))


def _at(x: Axis, y: Axis, point: tuple[float, float]) -> tuple[float, float]:
    left = _left(y)
    across = left + x.place(point[0]) * (WIDTH - left - _RIGHT)
    down = HEIGHT - _BOTTOM - y.place(point[1]) * (HEIGHT - _TOP - _BOTTOM)
    return across, down


def _grid(x: Axis, y: Axis) -> list[str]:
    left, bottom = _at(x, y, (x.low, y.low))
    right, top = _at(x, y, (x.high, y.high))
    parts: list[str] = []
    for value, label in y.ticks:
        _, down = _at(x, y, (x.low, value))
        parts.append(f'<path class="grid" d="M{left:.1f} {down:.1f}H{right:.1f}"/>')
        place = f'x="{left - 7:.1f}" y="{down + 4:.1f}"'
        parts.append(f'<text {place} text-anchor="end">{escape(label)}</text>')
    for value, label in x.ticks:
        across, _ = _at(x, y, (value, y.low))
        parts.append(f'<path class="axis" d="M{across:.1f} {bottom:.1f}v4"/>')
        place = f'x="{across:.1f}" y="{bottom + 17:.1f}"'
        parts.append(f'<text {place} text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<path class="axis" d="M{left:.1f} {bottom:.1f}H{right:.1f}"/>')
    middle = f'x="{(left + right) / 2:.1f}" y="{HEIGHT - 8}"'
    parts.append(f'<text class="title" {middle} text-anchor="middle">{escape(x.title)}</text>')
    turn = f'transform="translate(13 {(top + bottom) / 2:.1f}) rotate(-90)"'
    parts.append(f'<text class="title" {turn} text-anchor="middle">{escape(y.title)}</text>')
    return parts


def _line(x: Axis, y: Axis, line: Line) -> str:
    path, dots = [], []
    for piece in line.curve:
        places = [_at(x, y, point) for point in piece]
        if places:
            path.append("M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places))
        if line.dots or len(piece) == 1:
            for (across, down), point in zip(places, piece, strict=True):
                tip = f"<title>{escape(line.name)}: {point[1]:.4g} at {short(point[0])}</title>"
                dots.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="2.6">{tip}</circle>')
    again = line.colour is not None and line.colour >= COLOURS
    look = Look.DASHED if again and line.look is Look.STRONG else line.look
    tip = f"<title>{escape(line.name)}</title>"
    return (
        f'<g class="line {look.value}" style="{colour_of(line.colour)}">'
        f'<path d="{"".join(path)}">{tip}</path>{"".join(dots)}</g>'
    )


def _marks(x: Axis, y: Axis, marks: Sequence[Mark]) -> list[str]:
    """Draws an upright for each mark: losses are told above the chart, joinings inside."""
    ordered = sorted(marks, key=lambda mark: mark.time)
    lost = _uprights(x, _left(y), [mark for mark in ordered if mark.lost], _TOP - 5)
    return lost + _uprights(x, _left(y), [mark for mark in ordered if not mark.lost], _TOP + 12)


def _uprights(x: Axis, left: float, marks: Sequence[Mark], y: int) -> list[str]:
    """Draws marks of one kind; those that stand close together share their text."""
    parts: list[str] = []
    groups: list[tuple[float, list[str]]] = []
    verb = "lost" if any(mark.lost for mark in marks) else "joined"
    for mark in marks:
        across = left + min(1.0, max(0.0, x.place(mark.time))) * (WIDTH - left - _RIGHT)
        tip = f"<title>learner {escape(mark.learner)} {verb} {escape(mark.reason)}</title>"
        upright = f'<path d="M{across:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>'
        parts.append(f'<g class="mark {verb}">{tip}{upright}</g>')
        if groups and across - groups[-1][0] < 70:
            groups[-1][1].append(mark.learner)
        else:
            groups.append((across, [mark.learner]))
    for across, names in groups:
        text = f"{verb} {', '.join(names)}" if len(names) < 4 else f"{verb} {len(names)} learners"
        half = LETTER * 1.1 * len(text) / 2
        across = min(max(across, half), WIDTH - half)
        place = f'x="{across:.1f}" y="{y}" text-anchor="middle"'
        parts.append(f'<g class="mark {verb}"><text {place}>{escape(text)}</text></g>')
    return parts
