"""The picture of what learners do: bars at the right places, inside the panel."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from unisono.report.timeline_picture import WIDTH, TimelinePanel, TimelineRow, timeline_picture

SVG = "{http://www.w3.org/2000/svg}"


def bars(picture: str, kind: str) -> list[tuple[float, float]]:
    """Left end and width of each bar of a kind; the legend's come first."""
    found = [r for r in ET.fromstring(picture).iter(f"{SVG}rect") if r.get("class") == kind]
    return [(float(r.get("x", "")), float(r.get("width", ""))) for r in found][1:]


def test_bars_are_where_the_time_went() -> None:
    rows = [
        TimelineRow("a <1>", [(0.0, 12.0), (16.0, 30.0)], [(12.0, 14.0)]),
        TimelineRow("b", [(2.0, 3.0)], []),
    ]
    picture = timeline_picture("Title & more", [TimelinePanel("panel", rows, 10.0, 20.0)])
    (left, whole), _ = bars(picture, "waiting")
    assert left + whole == pytest.approx(WIDTH - 24, abs=0.1)
    first, second = bars(picture, "computing")  # that of b is over before the panel begins
    assert first == pytest.approx((left, 0.2 * whole), abs=0.1)
    assert second == pytest.approx((left + 0.6 * whole, 0.4 * whole), abs=0.1)
    assert bars(picture, "exchanging") == [
        pytest.approx((left + 0.2 * whole, 0.2 * whole), abs=0.1)
    ]
    texts = [text.text for text in ET.fromstring(picture).iter(f"{SVG}text")]
    assert {"Title & more", "panel", "a <1>", "b", "s"} <= set(texts)
