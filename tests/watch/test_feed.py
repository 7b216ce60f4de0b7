"""A run's directory as it is read on: what is there, what comes, and what is damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from support.live_events import Cluster
from unisono.config import load
from unisono.errors import UserError
from unisono.runs import Event, RunDirectory, format_event
from unisono.runs.tail import Tail
from unisono.watch.feed import Feed, Stage, find_run
from unisono.watch.snapshot import Subscription, snapshot


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load(None, [], {}))


def append(run: RunDirectory, *events: Event) -> None:
    with run.metrics.open("ab") as file:
        for event in events:
            file.write(format_event(event))


def writer(run: RunDirectory, learners: int) -> Cluster:
    made = Cluster(learners, lambda event: append(run, event))
    made.start()
    return made


def look(feed: Feed, clock: Clock, seconds: float = 1.0) -> None:
    clock.time += seconds
    feed.refresh()


def test_lines_that_are_no_events_are_passed_over(run: RunDirectory, clock: Clock) -> None:
    cluster = writer(run, 2)
    with run.metrics.open("ab") as file:
        file.write(b'nonsense\n[1, 2]\n{"event": "train"}\n\xff\xfe\n\n')
    cluster.run(3)
    with run.metrics.open("ab") as file:
        file.write(b'{"event":"joined","time":3.0,"lear')
    feed = Feed(run, clock)
    look(feed, clock)
    assert feed.malformed == 5
    assert len(feed.live.here) == 2
    with run.metrics.open("ab") as file:
        file.write(b'ner":2}\n')
    look(feed, clock)
    assert len(feed.live.here) == 3


def test_a_run_that_is_not_there_yet(tmp_path: Path, clock: Clock) -> None:
    feed = Feed(RunDirectory(tmp_path / "later"), clock)
    look(feed, clock)
    assert feed.stage is Stage.STARTING
    assert snapshot(feed)["learners"] == []
    run = RunDirectory.create(tmp_path / "later", load(None, [], {}))
    writer(run, 1).run(2)
    look(feed, clock)
    assert feed.stage is Stage.RUNNING


def test_a_run_that_was_replaced_is_read_anew(run: RunDirectory, clock: Clock) -> None:
    writer(run, 4).run(3)
    feed = Feed(run, clock)
    page = Subscription(feed)
    look(feed, clock)
    assert message(page)["reset"] is True
    kept = run.metrics.with_suffix(".kept")
    os.rename(run.metrics, kept)  # so that the new file has another inode
    writer(run, 2).run(1)
    look(feed, clock)
    after = message(page)
    assert after["reset"] is True
    assert len(after["state"]["learners"]) == 2


def message(page: Subscription) -> dict[str, object]:
    data = page.next()
    assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
    found: dict[str, object] = json.loads(data.removeprefix(b"data: "))
    return found


def test_the_clock_goes_on_between_events(run: RunDirectory, clock: Clock) -> None:
    cluster = writer(run, 2)
    cluster.run(5)
    feed = Feed(run, clock)
    look(feed, clock)
    now = feed.time
    look(feed, clock, 4.0)
    assert feed.time == pytest.approx(now + 4.0)
    assert feed.stage is Stage.RUNNING
    look(feed, clock, 30.0)
    assert feed.stage is Stage.QUIET
    cluster.run(1)
    look(feed, clock)
    assert feed.stage is Stage.RUNNING
    assert feed.time == pytest.approx(6.0)


def test_a_run_that_nobody_writes_is_found_old_at_the_first_look(
    run: RunDirectory, clock: Clock
) -> None:
    writer(run, 2).run(5)
    os.utime(run.metrics, (1e9, 1e9))
    feed = Feed(run, clock)
    look(feed, clock)
    assert feed.stage is Stage.QUIET


def test_the_end_of_a_run(run: RunDirectory, clock: Clock) -> None:
    cluster = writer(run, 2)
    cluster.run(5)
    cluster.speed[1] = 100.0
    cluster.run(20)
    for n in range(2):
        cluster.tell("left", n)
    run.summary.write_text("{}")
    feed = Feed(run, clock)
    look(feed, clock, 50.0)
    assert feed.stage is Stage.FINISHED
    assert feed.time == 25.0
    state = snapshot(feed)
    assert state["slow"] == [] and state["slowest"] == 1
    assert state["rate"] == pytest.approx(25_000 / 25 + 7_000 / 25)
    rates = [row["rate"] for row in state["learners"]]
    assert rates == pytest.approx([1000, (5 * 1000 + 20 * 100) / 25])


def test_a_resumed_run_is_not_finished_by_its_first_summary(
    run: RunDirectory, clock: Clock
) -> None:
    run.summary.write_text("{}")
    os.utime(run.summary, (1e9, 1e9))
    writer(run, 1).run(2)
    feed = Feed(run, clock)
    look(feed, clock)
    assert feed.stage is Stage.RUNNING


def test_a_run_that_failed(run: RunDirectory, clock: Clock) -> None:
    cluster = writer(run, 2)
    cluster.tell("failed", 1, reason="ValueError: no", cause="exception")
    feed = Feed(run, clock)
    look(feed, clock)
    assert snapshot(feed)["stage"] == "failed"
    assert snapshot(feed)["reason"] == "ValueError: no"


def test_virtual_time_stands_still(run: RunDirectory, clock: Clock) -> None:
    append(run, {"event": "start", "time": 0.0, "learner": None, "simulated": True})
    Cluster(2, lambda event: append(run, event)).run(0)
    append(run, {"event": "joined", "time": 1.0, "learner": 0})
    feed = Feed(run, clock)
    look(feed, clock)
    look(feed, clock, 10.0)
    assert feed.time == 1.0


def test_an_open_page_gets_only_what_is_new(run: RunDirectory, clock: Clock) -> None:
    cluster = writer(run, 2)
    cluster.waits = True
    cluster.run(5)
    feed = Feed(run, clock)
    page = Subscription(feed)
    first = message(page)
    assert first["reset"] is True and "lives" in first
    assert len(first["rounds"]) == 10  # type: ignore[arg-type]
    clock.time += 1
    second = message(page)
    assert second["rounds"] == [] and second["log"] == [] and "lives" not in second
    cluster.run(1)
    cluster.lose(1)
    clock.time += 1
    third = message(page)
    assert len(third["rounds"]) == 2  # type: ignore[arg-type]
    assert [line[1] for line in third["log"]] == [  # type: ignore[attr-defined]
        "learner 1 was lost: its process ended"
    ]


def test_two_hundred_learners_make_small_messages(run: RunDirectory, clock: Clock) -> None:
    cluster = writer(run, 200)
    cluster.waits = True
    cluster.run(30)
    feed = Feed(run, clock)
    page = Subscription(feed)
    assert len(page.next()) < 400_000
    cluster.run(1)
    clock.time += 1
    assert len(page.next()) < 120_000


def test_a_long_file_is_read_in_parts(
    run: RunDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer(run, 4).run(50)
    monkeypatch.setattr("unisono.watch.feed.BLOCK", 4096)
    feed = Feed(run, clock)
    look(feed, clock)
    assert feed.is_behind and snapshot(feed)["behind"] is True
    for _ in range(100):
        look(feed, clock)
    assert not feed.is_behind
    assert feed.live.time == 50.0


def test_what_is_no_run(tmp_path: Path, run: RunDirectory) -> None:
    with pytest.raises(UserError, match="no such directory"):
        find_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"neither config\.toml nor metrics\.jsonl"):
        find_run(tmp_path / "empty")
    append(run, {"event": "start", "time": 0.0, "learner": None})
    with pytest.raises(UserError, match=r"several runs: name one of them, such as .*run"):
        find_run(tmp_path)
    assert find_run(run.path) == run
    run.config.unlink()  # what a loop of one's own leaves
    assert find_run(run.path) == run


def test_a_tail_that_begins_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(format_event({"event": "old", "time": 0.0, "learner": None}))
    tail = Tail(path, from_start=False)
    with path.open("ab") as file:
        file.write(format_event({"event": "new", "time": 1.0, "learner": None}))
    assert [event["event"] for event in tail.read()] == ["new"]
    shutil.copy(path, tmp_path / "copy")
    path.write_bytes(b"")
    assert list(tail.read()) == [] and tail.restarts == 1
