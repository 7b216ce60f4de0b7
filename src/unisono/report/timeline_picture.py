"""Who computes, waits and exchanges when, as an SVG file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from unisono.report.axes import Quantity, make_axis
from unisono.report.charts import LETTER
from unisono.report.page import CHART_STYLE, COLOUR_STYLE

WIDTH = 760
_ROW, _BAND, _WIRE = 17, 9, 3
_STYLE = """
svg { background: var(--card); font-family: system-ui, sans-serif; }
svg .heading { font-size: 14px; font-weight: 600; fill: var(--ink); }
svg .name { font-weight: 600; fill: var(--ink); }
.computing { fill: var(--c0); } .waiting { fill: var(--c4); opacity: .35; }
.exchanging { fill: var(--c3); }
"""

Span = tuple[float, float]
"""Begin and end, in seconds."""


@dataclass(frozen=True)
class TimelineRow:
    """One learner."""

    name: str
    computing: Sequence[Span]
    exchanging: Sequence[Span]


@dataclass(frozen=True)
class TimelinePanel:
    """The learners of one run between two times."""

    title: str
    rows: Sequence[TimelineRow]
    begin: float
    end: float


def timeline_picture(title: str, panels: Sequence[TimelinePanel]) -> str:
    """Draws a row for each learner: when it computes, and below it when vectors leave it."""
    longest = max((len(row.name) for panel in panels for row in panel.rows), default=0)
    left = 20 + LETTER * longest
    body = [f'<text x="14" y="20" class="heading">{escape(title)}</text>']
    top = 34
    for name, text, across in (
        ("computing", "computing", 14),
        ("waiting", "waiting", 114),
        ("exchanging", "a vector on its way from the learner", 204),
    ):
        body.append(f'<rect class="{name}" x="{across}" y="{top - 3}" width="12" height="9"/>')
        body.append(f'<text x="{across + 18}" y="{top + 6}">{text}</text>')
    top += 26
    for panel in panels:
        body += _panel(panel, left, top)
        top += 18 + _ROW * len(panel.rows) + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" '
        f'height="{top}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{COLOUR_STYLE}{CHART_STYLE}{_STYLE}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _panel(panel: TimelinePanel, left: float, top: float) -> list[str]:
    seconds = panel.end - panel.begin
    axis = make_axis("time", [0.0, seconds], Quantity.TIME, zero=True, snug=True, most=8)
    scale = (WIDTH - 24 - left) / seconds

    def bar(kind: str, span: Span, y: float, height: int) -> str:
        begin, end = max(span[0], panel.begin), min(span[1], panel.end)
        place = f'x="{left + (begin - panel.begin) * scale:.1f}" y="{y:.1f}"'
        return (
            f'<rect class="{kind}" {place} width="{(end - begin) * scale:.1f}" height="{height}"/>'
        )

    parts = [f'<text x="14" y="{top + 8}" class="name">{escape(panel.title)}</text>']
    for place, row in enumerate(panel.rows):
        y = top + 18 + place * _ROW
        label = f'x="{left - 7:.1f}" y="{y + _BAND}" text-anchor="end"'
        parts.append(f"<text {label}>{escape(row.name)}</text>")
        parts.append(bar("waiting", (panel.begin, panel.end), y, _BAND))
        for kind, spans, down, height in (
            ("computing", row.computing, 0, _BAND),
            ("exchanging", row.exchanging, _BAND + 1, _WIRE),
        ):
            inside = (s for s in spans if s[1] > panel.begin and s[0] < panel.end)
            parts += [bar(kind, span, y + down, height) for span in inside]
    bottom = top + 18 + len(panel.rows) * _ROW + 3
    for value, text in axis.ticks:
        across = left + value * scale
        parts.append(f'<path class="axis" d="M{across:.1f} {bottom}v4"/>')
        under = f'x="{across:.1f}" y="{bottom + 16}" text-anchor="middle"'
        parts.append(f"<text {under}>{escape(text)}</text>")
    parts.append(f'<path class="axis" d="M{left:.1f} {bottom}H{WIDTH - 24}"/>')
    unit = axis.title.removeprefix("time").strip(" ()")
    parts.append(f'<text x="{left - 18:.1f}" y="{bottom + 16}" text-anchor="end">{unit}</text>')
    return parts
