"""A comparison as table, as JSON and as a page."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from support.compared import Scores, make_compared, make_unfinished
from unisono.errors import Cause, UserError
from unisono.report.choice import Cell, judge
from unisono.report.comparison import Comparison
from unisono.report.comparison_page import render
from unisono.report.outcome import read_result
from unisono.report.time_to_target import Ceiling

EVIL = "evil:<b>=1"


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Solo, a strategy that is a little worse and stale, and one that always diverges."""
    offsets = {"solo": 0.0, "gossip": -0.1}
    rows = []
    for name, offset in offsets.items():
        learners = 1 if name == "solo" else 3
        cells = []
        for rate in (0.5, 1.0):
            results = []
            for seed in (0, 1):
                value = offset - 2.0 - seed / 10 + rate / 10
                scores: list[Scores] = [(value - 1, value - 1), (value, value)]
                stale = 1.5 if name == "gossip" else 0.0
                path = tmp_path / "runs" / name / f"{rate:g}" / str(seed)
                far = 0.25 if name == "gossip" else None
                make_compared(path, scores, learners=learners, seed=seed, stale=stale, distance=far)
                results.append(read_result(path, seed))
            cells.append(Cell(rate, 0.05 * rate * learners, results))
        rows.append(judge(name, learners, cells, rows[0] if rows else None))
    cells = []
    for rate in (0.5, 1.0):
        path = tmp_path / "runs" / "evil" / f"{rate:g}" / "0"
        make_unfinished(path, "unisono: <i>10 steps were not finite</i>\n", Cause.DIVERGED)
        cells.append(Cell(rate, 0.05, [read_result(path, 0)]))
    rows.append(judge(EVIL, 3, cells, rows[0]))
    return Comparison(
        learners=3,
        epochs=2,
        seeds=[0, 1],
        rates=[0.5, 1.0],
        choosing=["ann", "bob"],
        reporting=["cy"],
        rows=rows,
        ceiling=Ceiling(3, 2.5, 2.4, 2.6, 100.0, 250.0),
    )


def test_json_has_everything(comparison: Comparison, tmp_path: Path) -> None:
    whole = json.loads(comparison.to_json(tmp_path))
    assert whole["format_version"] == 2
    assert (whole["choice_speakers"], whole["report_speakers"]) == (["ann", "bob"], ["cy"])
    solo, gossip, evil = whole["rows"]
    assert solo["minus_solo"] is None
    assert gossip["minus_solo"]["mean"] == pytest.approx(-0.1)
    assert gossip["minus_solo"]["interval"] == pytest.approx([-0.1, -0.1])
    assert (gossip["rate"], gossip["learning_rate"]) == (1.0, pytest.approx(0.15))
    assert gossip["at_edge"] is True
    assert gossip["pace"]["staleness"] == 1.5
    # Solo ends at -1.9 and -2.0, gossip 0.1 below; both have a validation at 1.5 and at 2.5 s, and
    # rise by 1 between them.
    near, far = gossip["time_to_target"]
    assert (near["target"], near["margin"]) == (pytest.approx(-1.97), 0.02)
    assert near["seconds"] == [None, None]
    assert (near["time"], near["speed_up"], near["reached"]) == (None, None, 0)
    assert near["best"] == pytest.approx(-2.0)
    assert far["target"] == pytest.approx(-2.05)
    assert far["seconds"] == [pytest.approx(2.45), None]
    (alone,) = [t for t in solo["time_to_target"] if t["margin"] == 0.1]
    assert alone["seconds"] == [pytest.approx(2.35), pytest.approx(2.45)]
    assert far["speed_up"]["mean"] == pytest.approx(2.35 / 2.45)
    assert whole["ceiling"]["ratio"] == 2.5
    assert solo["share_of_ceiling"] is None
    run = gossip["grid"][0]["runs"][1]
    assert run["run"] == "runs/gossip/0.5/1"
    assert run["best"]["logprob"] == pytest.approx(-2.15)
    assert (evil["ended"], evil["rate"], evil["logprob"]) == ("diverged", None, None)


def test_the_table_in_the_terminal(comparison: Comparison) -> None:
    text = "\n".join(comparison.lines())
    (line,) = re.findall(r"^gossip .*$", text, flags=re.MULTILINE)
    assert "x1* 0.15" in line
    assert line.split()[:3] == ["gossip", "never", "(-2.000)"]
    assert "2.5 s (1 of 2)" in line
    assert "-0.1000" in line
    assert "-0.100..-0.100" in line
    assert re.search(r"^evil:<b>=1 +diverged: <i>10 steps were not finite", text, re.MULTILINE)
    assert "Ceiling: 3 independent processes make 250.0 minibatches a second" in text
    assert "chosen on 2 held-out speakers, the figures are of 1 others" in text
    assert "at the edge of the grid (solo, gossip)" in text
    assert "gossip: learner 1 is slowest, with 0.50 of the others'" in text


def test_the_page(comparison: Comparison) -> None:
    text = render(comparison)
    found = re.findall(r"<figure>.*?</figure>", text, flags=re.DOTALL)
    charts = {c.findtext("figcaption"): c for c in (ET.fromstring(figure) for figure in found)}
    for curve in ("Training loss", "Reported log-prob", "Reported accuracy", "Staleness"):
        for against in ("examples", "time"):
            assert f"{curve} against {against}" in charts
    assert "Consensus distance against time" in charts
    # Every seed of both strategies that have a result; staleness of the one that has some.
    drawn = charts["Reported log-prob against time"]
    colours = [g.get("style") for g in drawn.iter("g") if "line" in g.get("class", "")]
    targets, runs = colours[:2], colours[2:]
    assert targets == ["--c: var(--grey)"] * 2
    assert runs == ["--c: var(--c0)"] * 2 + ["--c: var(--c1)"] * 2
    stale = charts["Staleness against time"]
    assert sum(1 for path in stale.findall(".//g[@class]/path") if path.get("d")) == 2
    assert "Slowest: learner 1 with" in text
    assert "diverged" in text
    for sign in ("http:", "https:", "src=", "href", "url(", "@import", "<script", "<link"):
        assert sign not in text, sign
    assert "<b>=1" not in text
    assert "<i>10" not in text


def test_a_run_that_failed_is_complained_about(tmp_path: Path, comparison: Comparison) -> None:
    comparison.complain()
    path = make_unfinished(tmp_path / "x", "unisono: No space left on device\n")
    row = judge("solo", 1, [Cell(1.0, 0.05, [read_result(path, 0)])], None)
    bad = Comparison(
        learners=1, epochs=1, seeds=[0], rates=[1.0], choosing=["a"], reporting=["b"], rows=[row]
    )
    with pytest.raises(UserError, match=r"1 of 1 runs failed, first .*x: No space left"):
        bad.complain()
    assert "failed: No space left" in "\n".join(bad.lines())
