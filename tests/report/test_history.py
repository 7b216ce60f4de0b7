from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.config import Config
from unisono.report.history import _KNOWN, History, by_examples, by_time, mean_curve, number, thin
from unisono.runs import Event


def train(time: float, learner: int, examples: int, **more: Any) -> Event:
    event = {"event": "train", "time": time, "learner": learner, "examples": examples}
    return {**event, "rate": 100.0, "loss": 2.0, "global_examples": examples, **more}


def start(time: float) -> Event:
    return {"event": "start", "time": time, "learner": None}


def history(*events: Event) -> History:
    return History("run", Config(), None, list(events))


def test_a_learner_is_as_fast_as_it_computes() -> None:
    run = history(
        start(0.0),
        train(1.0, 0, 100, round_wait_s=0.5, data_wait_s=0.25),
        train(1.0, 1, 100),
        train(3.0, 0, 300, round_wait_s=1.0),
        train(3.0, 1, 300),
    )
    fast, slow = run.tracks()
    assert (fast.examples, fast.seconds) == (slow.examples, slow.seconds) == (300, 3.0)
    assert (fast.data_wait_s, fast.round_wait_s) == (0.25, 1.5)
    assert fast.speed == pytest.approx(300 / 1.25)
    assert slow.speed == pytest.approx(100)
    assert fast.rate == [[(1.0, 100.0), (3.0, 100.0)]]


def test_a_learner_that_was_away_has_a_gap_that_does_not_count() -> None:
    run = history(
        start(0.0),
        train(1.0, 5, 100),
        {"event": "lost", "time": 2.0, "learner": 5, "reason": "killed"},
        {"event": "joined", "time": 10.0, "learner": 5},
        train(11.0, 5, 100),
    )
    (track,) = run.tracks()
    assert (track.examples, track.seconds) == (200, 2.0)
    assert track.rate == [[(1.0, 100.0)], [(11.0, 100.0)]]
    assert [(m.time, m.learner, m.lost, m.reason) for m in run.marks()] == [
        (2.0, "5", True, "killed"),
        (10.0, "5", False, ""),
    ]


@pytest.mark.parametrize("clock", [0.0, 2.5])
@pytest.mark.parametrize("counted", [0, 50])
def test_a_resumed_run_goes_on(make_run: Any, clock: float, counted: int) -> None:
    """The clock and the count of examples may go on after a resumption, or begin anew."""
    events = [train(2.0, 0, 200), start(clock), train(clock + 1.0, 0, counted + 100)]
    run = make_run(seconds=0, learners=1, extra=events, finished=False)
    read = History.read(run.path, "run")
    begun = clock or 2.0
    assert [event["time"] for event in read.events] == [0.0, 2.0, begun, begun + 1.0]
    (track,) = read.tracks()
    assert track.seconds == pytest.approx(3.0)
    assert track.examples == 2.0 * 100 + 1.0 * 100
    (loss,) = read.losses(by_time)
    assert [piece for piece in loss if piece] == [[(2.0, 2.0)], [(begun + 1.0, 2.0)]]


def test_a_series_is_one_curve_whoever_tells_it() -> None:
    told = [
        {"event": "consensus", "time": t, "learner": n, "distance": t / 10}
        for n, t in ((0, 1.0), (1, 2.0), (0, 3.0))
    ]
    assert history(*told).series("consensus", "distance", by_time) == [
        [(1, 0.1), (2, 0.2), (3, 0.3)]
    ]
    assert history(*told).series("consensus", "distance", by_examples) == [[]]


def test_what_says_nothing_of_the_data_seen_is_where_the_last_word_was(make_run: Any) -> None:
    events = [
        start(0.0),
        {"event": "consensus", "time": 0.5, "learner": 0, "distance": 3.0},
        train(1.0, 0, 100),
        {"event": "consensus", "time": 1.5, "learner": 1, "distance": 2.0},
        train(2.0, 1, 250),
        {"event": "consensus", "time": 2.5, "learner": 0, "distance": 1.0},
    ]
    run = make_run(seconds=0, extra=events, finished=False)
    told = History.read(run.path, "").series("consensus", "distance", by_examples)
    assert [point for piece in told for point in piece] == [(100, 2.0), (250, 1.0)]


def test_start_up_can_be_left_out() -> None:
    events = [{"event": "joined", "time": t, "learner": n} for n, t in ((0, 2.0), (1, 5.0))]
    late = {"event": "joined", "time": 9.0, "learner": 2}
    config = Config(learners="2")
    run = History("run", config, None, [*events, train(6.0, 0, 10), late, train(10.0, 1, 10)])
    assert [event["time"] for event in run.without_start_up().events] == [1.0, 4.0, 5.0]
    assert history(train(6.0, 0, 10)).without_start_up().events[0]["time"] == 6.0


def test_learners_are_in_the_order_of_their_numbers() -> None:
    run = history(start(0.0), *(train(1.0, learner, 1) for learner in (10, 2, 0)))
    assert [track.name for track in run.tracks()] == ["0", "2", "10"]


def test_numbers_that_are_missing_or_not_finite_are_left_out() -> None:
    run = history(start(0), train(1, 0, 1, loss=None), train(2, 0, 2), train(3, 0, 3, loss="x"))
    assert run.losses(by_examples) == [[[], [(2, 2.0)]]]
    assert number({"x": math.nan}, "x") is None
    assert number({"x": True}, "x") is None


def test_the_mean_goes_through_the_learners() -> None:
    curves = [[[(float(t), 1.0) for t in range(10)]], [[(t + 0.5, 3.0) for t in range(10)]]]
    (mean,) = mean_curve(curves)
    assert [y for _, y in mean] == [2.0] * len(mean)
    assert len(mean) == 10


def test_a_learner_that_died_at_once_does_not_spoil_the_mean() -> None:
    curves = [[[(float(t), 1.0) for t in range(100)]], [[(0.0, 1.0)]]]
    (mean,) = mean_curve(curves)
    assert len(mean) == 50


def test_parts_of_a_run_are_averaged_apart() -> None:
    before, after = [(0.0, 1.0)], [(1.0, 5.0)]
    joined_later = [[], [(1.0, 7.0)]]
    assert mean_curve([[before, after], joined_later]) == [[(0.0, 1.0)], [(1.0, 6.0)]]


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e3, 1e3)), min_size=1, max_size=200),
    st.integers(1, 50),
)
def test_thinning_keeps_the_order_and_the_range(
    points: list[tuple[float, float]], most: int
) -> None:
    thinned = thin(points, most)
    assert 1 <= len(thinned) <= max(most, 1)
    assert thinned == sorted(thinned)
    heights = [y for _, y in points]
    assert all(min(heights) - 1e-6 <= y <= max(heights) + 1e-6 for _, y in thinned)
    if len(points) <= most:
        assert thinned == sorted(points)


def test_events_of_our_own_are_no_curves_of_the_user() -> None:
    """Whatever the reference documents would be drawn as a chart if the report did not know it."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
    names = set(re.findall(r"^\| `([a-z_]+)` \|", page.read_text(), re.MULTILINE))
    assert {"requested", "checkpoint"} <= names <= _KNOWN
