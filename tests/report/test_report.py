from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from unisono.errors import UserError
from unisono.report import write_report
from unisono.runs import format_event

LOST = [
    {"event": "lost", "time": 9.0, "learner": 2, "reason": "silent for 10 s"},
    {"event": "joined", "time": 12.0, "learner": 9},
]


def figures(text: str) -> dict[str, ET.Element]:
    """The charts by their captions; fails where one is not well formed."""
    found = re.findall(r"<figure>.*?</figure>", text, flags=re.DOTALL)
    roots = [ET.fromstring(figure) for figure in found]
    return {root.findtext("figcaption") or "": root for root in roots}


def lines(figure: ET.Element, look: str) -> int:
    return sum(look in g.get("class", "").split() for g in figure.iter("g"))


def test_one_run(make_run: Any) -> None:
    run = make_run(learners=3, slow=1, extra=LOST)
    assert write_report([run.path], run.report) == run.report
    text = run.report.read_text(encoding="utf-8")
    charts = figures(text)
    for curve in ("Training loss", "Held-out log-prob", "Held-out accuracy"):
        assert f"{curve} against examples" in charts
        assert f"{curve} against time" in charts
    assert lines(charts["Training loss against time"], "strong") == 1
    assert lines(charts["Training loss against time"], "faint") == 3
    assert lines(charts["Rate of each learner"], "line") == 3
    assert "Slowest: learner 1 with" in text
    marked = charts["Where each learner's time went"].find(".//g[@class='marked']/text")
    assert marked is not None
    assert marked.text == "learner 1"
    assert "lost 2" in {t.text for t in charts["Rate of each learner"].iter("text")}
    assert "learner 2 lost: silent for 10 s" in text
    assert "learner 9 joined" in text
    assert "waits: everybody, each round" in text


def test_it_needs_nothing_from_elsewhere(make_run: Any) -> None:
    run = make_run()
    text = write_report([run.path], run.report).read_text(encoding="utf-8")
    for sign in ("http:", "https:", "//", "src=", "href", "url(", "@import", "<script", "<link"):
        assert sign not in text.replace("cores // learners", ""), sign
    assert "prefers-color-scheme: dark" in text


def test_several_runs_lie_over_each_other(make_run: Any, tmp_path: Path) -> None:
    runs = [make_run(name, learners=n, seed=n).path for name, n in (("a", 1), ("b", 2), ("c", 9))]
    text = write_report(runs, tmp_path / "out.html").read_text(encoding="utf-8")
    charts = figures(text)
    assert lines(charts["Training loss against examples"], "strong") == 3
    assert lines(charts["Training loss against examples"], "faint") == 0
    assert lines(charts["Held-out log-prob against time"], "line") == 3
    legend = re.findall(r'<ul class="legend">.*?</ul>', text)[0]
    assert re.findall(r"</i>(\w)</li>", legend) == ["a", "b", "c"]
    assert text.count("Where each learner's time went") == 0  # escaped
    assert unescape(text).count("<figcaption>Where each learner's time went") == 3
    assert len(re.findall('<td class="best">', text)) == 2


def test_runs_of_different_data_share_no_best(make_run: Any, tmp_path: Path) -> None:
    runs = [make_run(name, learners=1, seed=i).path for i, name in enumerate("abc")]
    for run, data in zip(runs, ("x", "x", "y"), strict=True):
        (run / "model.json").write_text(json.dumps({"prep": data}))
    text = write_report(runs, tmp_path / "out.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr>.*?</tr>", text, flags=re.DOTALL)
    best = [row.count('<td class="best">') for row in rows[1:4]]
    assert sum(best[:2]) == 2 and best[2] == 0
    assert "different data" in text


def test_the_time_axis_is_the_training_time(make_run: Any) -> None:
    """Start-up, 5 s of 21, is apart: the axis ends where the time in the table does."""
    run = make_run(finished=False)
    events = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    late = [{**e, "time": e["time"] + 5.0 * (e["event"] != "start")} for e in events]
    run.metrics.write_bytes(b"".join(format_event(e) for e in late))
    text = write_report([run.path], run.report).read_text()
    assert "<b>5.0 s</b><span>start-up" in text
    assert "<b>16.5 s</b><span>training time" in text
    ticks = [t.text for t in figures(text)["Training loss against time"].iter("text")]
    assert "15" in ticks and "20" not in ticks
    assert "joined 0, 1" not in ticks


def test_the_curves_are_those_of_the_metrics(make_run: Any) -> None:
    run = make_run(learners=1, slow=None)
    chart = figures(write_report([run.path], run.report).read_text())[
        "Held-out accuracy against examples"
    ]
    places = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in chart.iter("circle")]
    checks = [e for e in run.read_metrics() if e["event"] == "validation"]
    assert len(places) == len(checks) == 8
    first, last = checks[0], checks[-1]
    for place, check in zip(places, checks, strict=True):
        for axis, key in ((0, "global_examples"), (1, "accuracy")):
            share = (check[key] - first[key]) / (last[key] - first[key])
            expected = places[0][axis] + share * (places[-1][axis] - places[0][axis])
            assert place[axis] == pytest.approx(expected, abs=0.2)


def test_an_unfinished_run_and_one_without_events(make_run: Any) -> None:
    run = make_run(finished=False)
    with run.metrics.open("ab") as file:
        file.write(b'{"event":"train","ti')
    text = write_report([run.path], run.report).read_text()
    assert "not ended" in text
    assert len(figures(text)) == 8
    bare = make_run("bare", finished=False)
    bare.metrics.unlink()
    text = write_report([bare.path], bare.report).read_text()
    assert "Nothing was trained yet" in text
    assert figures(text) == {}


def test_sixteen_learners_set_off_the_slowest_alone(make_run: Any) -> None:
    run = make_run(learners=16, slow=3)
    text = write_report([run.path], run.report).read_text()
    rates = figures(text)["Rate of each learner"]
    assert lines(rates, "faint") == 15
    assert lines(rates, "strong") == 1
    assert "slowest: learner 3" in text
    assert len(text) < 300_000


def test_what_files_say_is_escaped(make_run: Any) -> None:
    evil = "<img src=x onerror='alert(1)'>"
    extra = [{"event": "lost", "time": 1.0, "learner": evil, "reason": evil}]
    run = make_run("<b>bold", extra=extra, finished=False)
    text = write_report([run.path], run.report).read_text()
    assert "<img" not in text
    assert "<b>bold" not in text
    assert "&lt;b&gt;bold" in text


def test_runs_of_the_same_name_are_told_apart(make_run: Any, tmp_path: Path) -> None:
    runs = [make_run("run", root=tmp_path / part).path for part in ("x", "y")]
    text = write_report(runs, tmp_path / "out.html").read_text()
    assert "x/run, y/run" in text


def test_faults_are_one_line(make_run: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one run"):
        write_report([], tmp_path / "out.html")
    with pytest.raises(UserError, match="is not a run"):
        write_report([tmp_path], tmp_path / "out.html")
    with pytest.raises(UserError, match="cannot write"):
        write_report([make_run().path], tmp_path / "none" / "out.html")
    assert "out.html" not in os.listdir(tmp_path)


def test_words_that_were_decoded_into_the_run(make_run: Any) -> None:
    run = make_run()
    assert "Words</h2>" not in write_report([run.path], run.report).read_text(encoding="utf-8")
    score = {"wer": 0.125, "interval": [0.1, 0.15], "cer": 0.0625, "words": 1234}
    facts = {"clean & near": {**score, "ins": 7, "del": 11, "sub": 136}, "no text": {"model": "x"}}
    for name, content in facts.items():
        (run.path / name).mkdir()
        (run.path / name / "score.json").write_text(json.dumps(content))
    (run.path / "torn").mkdir()
    (run.path / "torn" / "score.json").write_text("{")
    text = write_report([run.path], run.report).read_text(encoding="utf-8")
    tables = re.findall(r"<table>.*?</table>", text, flags=re.DOTALL)
    rows = list(ET.fromstring(tables[1]).iter("tr"))
    assert len(rows) == 2
    cells = [cell.text for cell in rows[1]]
    assert cells[1:] == [
        "clean & near", "12.5 %", "10.0 % and 15.0 %", "1,234", "7", "11", "136", "6.2 %"
    ]  # fmt: skip
    assert "word errors, clean &amp; near" in text
