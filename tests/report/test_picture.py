"""A chart as a file of its own."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from unisono.report.charts import Line
from unisono.report.learning_section import time_axes
from unisono.report.picture import picture_of

SVG = "{http://www.w3.org/2000/svg}"


def test_it_stands_alone_and_names_its_lines() -> None:
    lines = [Line("a", [[(0.0, -50.0), (10.0, -2.0), (20.0, -1.0)]], 0)]
    x, y, drawn = time_axes(lines, {"target": -1.02})
    legend = [(0, "solo & <one>"), (None, "target")]
    root = ET.fromstring(picture_of("log-prob", x, y, drawn, legend))
    assert "prefers-color-scheme: dark" in "".join(root.itertext())
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert {"log-prob", "solo & <one>", "target"} <= set(texts)
    groups = [g for g in root.iter(f"{SVG}g") if "line" in (g.get("class") or "").split()]
    assert len(groups) == 4  # the target across, the curve, and both in the legend


def test_early_points_do_not_flatten_what_lies_near_the_target() -> None:
    curve = [(0.0, -50.0), (10.0, -2.0), (20.0, -1.0)]
    _, y, (across, line) = time_axes([Line("a", [curve], 0)], {"target": -1.02})
    assert -2.0 < y.low < -1.02
    assert across.curve == [[(0.0, -1.02), (20.0, -1.02)]]
    (first, last) = line.curve[0]
    assert last == (20.0, -1.0)
    assert first[1] == y.low and 10.0 < first[0] < 20.0
    assert abs((first[0] - 10.0) / 10.0 - (y.low + 2.0)) < 1e-9  # on the line between them
