from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from unisono.report.axes import Axis, Quantity, make_axis
from unisono.report.charts import Bar, Line, bar_chart, line_chart
from unisono.report.history import Mark

X = make_axis("x", [0, 10], Quantity.NUMBER)
Y = make_axis("y", [0, 5], Quantity.NUMBER)


def numbers(path: str) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def line_paths(figure: str) -> list[str]:
    root = ET.fromstring(figure)
    groups = [g for g in root.iter("g") if "line" in g.get("class", "").split()]
    return [path.get("d", "") for group in groups for path in group.iter("path")]


def test_points_lie_where_the_ticks_say() -> None:
    figure = line_chart("t", X, Y, [Line("a", [[(0, 0), (10, 5)], [(5, 2.5)]])])
    low, high, middle = numbers(line_paths(figure)[0])
    texts = {t.text: t for t in ET.fromstring(figure).iter("text")}
    assert abs(float(texts["10"].get("x", "")) - high[0]) < 0.2
    assert abs(float(texts["0"].get("x", "")) - low[0]) < 0.2
    assert middle == ((low[0] + high[0]) / 2, (low[1] + high[1]) / 2)
    assert low[1] > high[1]  # SVG counts downwards


def test_pieces_are_not_joined() -> None:
    (path,) = line_paths(
        line_chart("t", X, Y, [Line("a", [[(0, 1), (1, 1)], [], [(5, 1), (6, 1)]])])
    )
    assert path.count("M") == 2
    assert path.count("L") == 2


def test_marks_that_stand_close_share_their_text() -> None:
    marks = [Mark(5.0 + i / 10, str(i), True, "killed") for i in range(5)]
    marks += [Mark(9.0, "7", False, "")]
    root = ET.fromstring(line_chart("t", X, Y, [], marks))
    texts = [t.text for t in root.iter("text")]
    assert "lost 5 learners" in texts
    assert "joined 7" in texts
    assert len([g for g in root.iter("g") if g.find("path") is not None]) == 6


def test_bars_fill_the_whole() -> None:
    shares = [("computing", 0.5), ("data", 0.2), ("rounds", 0.3)]
    root = ET.fromstring(bar_chart("t", [Bar("a", shares, "n"), Bar("b", [("data", 1.0)], "n")]))
    widths = [float(rect.get("width", "")) for rect in root.iter("rect")]
    assert abs(sum(widths[:3]) - widths[3]) < 0.2
    assert abs(widths[0] / widths[3] - 0.5) < 0.01


def test_labels_have_room() -> None:
    """Names and notes of bars, and labels of the upright axis, fit between the edges."""
    name, note = "learner 1234 of another host", "123.4 k examples/s"
    root = ET.fromstring(bar_chart("t", [Bar(name, [("computing", 1.0)], note)]))
    first, last = list(root.iter("text"))
    assert float(first.get("x", "")) >= 6.5 * len(name)
    assert float(last.get("x", "")) + 6.5 * len(note) <= 560
    wide = Axis("y", 0.0, 1.0, [(0.0, "\N{MINUS SIGN}1234.5678"), (1.0, "0")])
    root = ET.fromstring(line_chart("t", X, wide, [Line("a", [[(0, 0)]])]))
    label = next(t for t in root.iter("text") if t.text == wide.ticks[0][1])
    assert float(label.get("x", "")) - 6.5 * len(label.text or "") >= 13 + 6  # the title's place


def test_text_from_files_is_escaped() -> None:
    evil = "<script>\"&'</script>"
    figure = line_chart(evil, X, Y, [Line(evil, [[(1, 1)]])], [Mark(1.0, evil, True, evil)])
    figure += bar_chart(evil, [Bar(evil, [("data", 1.0)], evil)])
    assert "<script" not in figure
    ET.fromstring(f"<div>{figure}</div>")
