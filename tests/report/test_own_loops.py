"""The report of a script with a learner: what its events tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_report import figures

import unisono
from support.loops import BATCH, alone, dataset, loss_of, network, sgd
from unisono.report import write_report
from unisono.report.history import History
from unisono.runs import Event, format_event
from unisono.runs.directory import RunDirectory
from unisono.strategies.base import describe


def train(folder: Path, epochs: int = 2, **options: Any) -> None:
    model = network()
    how = {"checkpoints": folder, **options}
    with unisono.Learner(model, sgd(model), unisono.Averaging(every=BATCH), **how) as learner:
        for batch in learner.draw(dataset(), epochs, BATCH):
            loss = loss_of(model, batch)
            learner.step(loss)
            if learner.every(examples=4 * BATCH):
                learner.event("checked", loss=loss, text="no number")


def report_of(folder: Path) -> str:
    return write_report([folder], folder / "report.html").read_text(encoding="utf-8")


def test_a_loop_of_ones_own_has_a_report(tmp_path: Path) -> None:
    alone(lambda: train(tmp_path))
    text = report_of(tmp_path)
    drawn = figures(text)
    assert {"checked: loss against examples", "checked: loss against time"} <= set(drawn)
    assert not any("text" in name for name in drawn)
    points = len(drawn["checked: loss against examples"].findall(".//circle"))
    assert points == 2 * len(dataset()) // (4 * BATCH)
    assert "averaging (every=8," in text
    assert "nats" not in text and "frames" not in text and "Configuration" not in text
    assert '<td class="text why">finished</td>' in text


def test_examples_of_an_event_are_those_of_its_minibatch(tmp_path: Path) -> None:
    alone(lambda: train(tmp_path))
    events = RunDirectory(tmp_path).read_metrics()
    seen = [e["global_examples"] for e in events if e["event"] == "checked"]
    assert seen == [4 * BATCH * n for n in range(1, len(seen) + 1)]


def test_a_resumed_loop_goes_on_in_its_report(tmp_path: Path) -> None:
    alone(lambda: train(tmp_path))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "tr')  # as a kill leaves it
    alone(lambda: train(tmp_path, epochs=4, resume=True))
    history = History.read(tmp_path, "run")
    times = [event["time"] for event in history.events]
    assert times == sorted(times) and len(history.named("start")) == 2
    assert history.joined_later == 0 and history.ended == "finished"
    assert len(history.series("checked", "loss", lambda event: event["time"])) == 3


def test_learners_of_a_loop_of_ones_own(tmp_path: Path) -> None:
    lines = describe(unisono.GossipRandom(every=80), 3)
    events: list[Event] = [{"event": "start", "time": 0.0, "learner": None, "lines": []}]
    events += [{"event": "joined", "time": n / 10, "learner": n} for n in range(3)]
    events += [{"event": "strategy", "time": 0.5, "learner": 1, "lines": lines}]
    events += [{"event": "joined", "time": 2.0, "learner": 3}]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(map(format_event, events)))
    history = History.read(tmp_path, "run")
    assert history.config.learners == "3" and history.config.strategy_name == "gossip-random"
    assert history.joined_later == 1 and history.start_up_s == 0.2
    assert history.ended == "not ended"


def test_a_loop_that_was_killed_has_not_ended(tmp_path: Path) -> None:
    alone(lambda: train(tmp_path))
    metrics = tmp_path / "metrics.jsonl"
    kept = [line for line in metrics.read_text().splitlines(True) if '"leaves"' not in line]
    metrics.write_text("".join(kept))
    assert "not ended" in report_of(tmp_path)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(unisono.UserError, match=r"is not a run: it has no config\.toml"):
        report_of(tmp_path)
