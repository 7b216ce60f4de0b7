"""What the page's data model makes of events: of good ones, and of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.live_events import Cluster
from unisono.runs import Event
from unisono.watch.curves import MOST_BINS, MeanCurve
from unisono.watch.learner_state import Presence
from unisono.watch.live_run import LiveRun

Make = Callable[..., Cluster]


def lines(live: LiveRun) -> list[str]:
    return [line.text for _, line in live.log]


def test_servers_are_in_the_log_and_are_no_learners(live: LiveRun) -> None:
    about = {"learner": None, "server": 4, "who": "server-4.0#0", "reason": ""}
    live.take({"event": "server_joined", "time": 1.0, **about, "host": "host1", "device": "cpu"})
    why = {"reason": "its process ended", "cause": "process-ended"}
    live.take({"event": "server_lost", "time": 2.0, **about, **why})
    assert lines(live) == ["server 4 joined on host1 (cpu)", "server 4 was lost: its process ended"]
    assert [line.bad for _, line in live.log] == [False, True]
    assert (live.learners, live.lost) == ({}, 0)


def test_a_death_and_a_rejoin(cluster: Make, live: LiveRun) -> None:
    run = cluster(3)
    run.run(5)
    run.lose(1)
    assert live.learners[1].presence is Presence.LOST
    assert live.learners[1].reason == "its process ended"
    assert [learner.number for learner in live.here] == [0, 2]
    assert live.lost == 1
    run.run(5)
    run.join(1)
    run.run(5)
    assert live.learners[1].lives == 2
    lives = [(life.begun, life.ended, life.lost) for life in live.lives if life.learner == 1]
    assert lives == [(0.0, 5.0, True), (10.0, None, False)]
    assert live.learners[1].examples == pytest.approx(10_000)
    assert "learner 1 was lost: its process ended" in lines(live)
    assert lines(live).count("learner 1 joined on host1 (cpu)") == 2


def test_shares_of_waiting_and_exchanging(cluster: Make, live: LiveRun) -> None:
    """The slowest waits for nothing but the transfer; that is what an exchange takes."""
    run = cluster(2, waits=True, speed={1: 250.0})
    run.run(10)
    fast, slow = (live.learners[n].shares(live.time) for n in (0, 1))
    assert fast.others == pytest.approx(0.75, abs=0.01)
    assert fast.exchanging == pytest.approx(0.01, abs=0.003)
    assert slow.others == pytest.approx(0.0, abs=0.005)
    assert slow.computing == pytest.approx(0.99, abs=0.01)


def test_a_resumed_run_goes_on(cluster: Make, live: LiveRun) -> None:
    run = cluster(2)
    run.run(10)
    run.time = 0.0
    run.start()
    run.run(3)
    assert live.time == pytest.approx(13.0)
    assert [life.ended for life in live.lives] == [10.0, 10.0, None, None]
    assert live.examples == pytest.approx(26_000)


def test_the_rate_falls_when_reports_stay_away(cluster: Make, live: LiveRun) -> None:
    cluster(1).run(10)
    learner = live.learners[0]
    assert learner.rate(live.time) == pytest.approx(1000)
    assert learner.rate(live.time + 10) < 500
    assert learner.rate(live.time + 100) < 100


def test_staleness_is_the_mean_of_the_last_rounds(cluster: Make, live: LiveRun) -> None:
    run = cluster(1)
    for place, stale in enumerate([2, 4]):
        run.tell("round", 0, round=place, time_s=0.1, weight=1, staleness=stale)
    assert live.learners[0].staleness() == 3
    assert live.shared == 2


def test_held_out_scores_are_drawn_where_their_model_was_taken(
    cluster: Make, live: LiveRun
) -> None:
    run = cluster(1)
    run.time = 20.0
    run.tell("validation", 0, logprob=-2.0, accuracy=0.5, age_s=4.0)
    run.tell("validation", 0, logprob=-3.0, accuracy=0.4, age_s=10.0)
    assert live.heldout == [(10.0, -3.0), (16.0, -2.0)]


_NAMES = ["start", "joined", "lost", "left", "leaves", "train", "round", "validation", "status"]
_NAMES += ["failed", "diverged", "something new"]
_KEYS = ["lines", "examples", "rate", "loss", "round", "time_s", "members", "weight", "phases"]
_KEYS += ["silent", "logprob", "age_s", "links", "reason", "progress", "rate_factor", "total"]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("0"), inner, max_size=1),
    max_leaves=3,
)


@given(
    st.lists(
        st.builds(
            lambda name, time, learner, fields: {
                **fields, "event": name, "time": time, "learner": learner
            },
            st.sampled_from(_NAMES),
            st.floats(0, 1e6),
            st.none() | st.integers(0, 3) | st.text(max_size=2) | st.booleans(),
            st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_whatever_an_event_holds_it_is_taken(events: list[Event]) -> None:
    live = LiveRun()
    for event in events:
        live.take(event)
    live.slow.find(live.here, live.time)
    for learner in live.learners.values():
        shares = learner.shares(live.time)
        assert 0 <= shares.computing <= 1 + 1e-9
        learner.rate(live.time + 1)


def test_a_long_curve_stays_short_and_keeps_its_mean() -> None:
    curve = MeanCurve()
    for second in range(100_000):
        curve.add(float(second), second / 100_000)
    points = curve.points()
    assert MOST_BINS // 2 <= len(points) <= MOST_BINS
    assert all(value == pytest.approx(time / 100_000, abs=0.01) for time, value in points)
