"""A chart as an SVG file of its own, with its style and its legend inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unisono.report.axes import Axis
from unisono.report.charts import HEIGHT, LETTER, WIDTH, Line, colour_of, line_marks
from unisono.report.page import CHART_STYLE, COLOUR_STYLE

_ROW = 17


def picture_of(
    title: str, x: Axis, y: Axis, lines: Sequence[Line], legend: Sequence[tuple[int | None, str]]
) -> str:
    """Draws lines over two axes; a legend of (colour, text) stands to the right."""
    longest = max((len(text) for _, text in legend), default=0)
    width = round(WIDTH + 32 + LETTER * longest)
    height = max(HEIGHT, _ROW * (len(legend) + 2)) + 24
    parts = [
        f'<text x="14" y="20" class="heading">{escape(title)}</text>',
        '<g transform="translate(0 24)">',
    ]
    parts += [*line_marks(x, y, lines), "</g>"]
    for place, (colour, text) in enumerate(legend):
        top = 48 + place * _ROW
        path = f'<path d="M{WIDTH} {top - 4}h18"/>'
        parts.append(f'<g class="line strong" style="{colour_of(colour)}">{path}</g>')
        parts.append(f'<text x="{WIDTH + 24}" y="{top}">{escape(text)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{COLOUR_STYLE}{CHART_STYLE}"
        "svg { background: var(--card); font-family: system-ui, sans-serif; } "
        "svg .heading { font-size: 14px; font-weight: 600; fill: var(--ink); }</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )
