"""A few shapes of SVG, enough for the diagrams of the documentation."""

from __future__ import annotations

from html import escape

INK, PALE, WAIT, COMPUTE, SLOW, MESSAGE = (
    "#1f2933",
    "#f5f7fa",
    "#d9dee5",
    "#4c7fb8",
    "#c97b3d",
    "#2f855a",
)
_STYLE = "font-family:system-ui,sans-serif;font-size:13px"


class Drawing:
    """Shapes in the order in which they were added, on a white card."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._shapes: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, text: str = ""
    ) -> None:
        """Adds a rectangle with text in its middle."""
        self._shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
            f'fill="{fill}"/>'
        )
        if text:
            light = fill in (PALE, WAIT, "white")
            self.text(x + width / 2, y + height / 2 + 4, text, INK if light else "white", "middle")

    def frame(self, x: float, y: float, width: float, height: float, text: str) -> None:
        """Adds a box with a border and text in its middle; a newline begins the next line."""
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{PALE}" '
            f'stroke="{INK}" stroke-width="1"/>'
        )
        lines = text.split("\n")
        top = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for index, line in enumerate(lines):
            weight = "bold" if index == 0 and len(lines) > 1 else "normal"
            self.text(x + width / 2, top + 16 * index, line, INK, "middle", weight)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        fill: str = INK,
        anchor: str = "start",
        weight: str = "normal",
    ) -> None:
        """Adds a line of text."""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = MESSAGE) -> None:
        """Adds a thin line."""
        self._shapes.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            'stroke-width="1.2"/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = MESSAGE) -> None:
        """Adds a thin line with a head."""
        self._shapes.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="1.2" marker-end="url(#head)"/>'
        )

    def render(self) -> str:
        """Returns the file's text."""
        width, height = self._size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" style="{_STYLE}">\n'
            f"<title>{escape(self._title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
            'markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" fill="context-stroke"/>'
            "</marker></defs>\n"
            f'<rect width="{width}" height="{height}" rx="8" fill="white"/>\n'
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )
