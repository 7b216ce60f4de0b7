"""Who is called slow, how soon, and who is not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from support.live_events import Cluster
from unisono.watch.live_run import LiveRun

Make = Callable[..., Cluster]


def slow(live: LiveRun, at: float | None = None) -> list[int]:
    return [each.learner for each in live.slow.find(live.here, live.time if at is None else at)]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("learners", [2, 4, 200])
def test_a_learner_slowed_five_times_is_named_within_ten_seconds(
    cluster: Make, live: LiveRun, learners: int, waits: bool
) -> None:
    run = cluster(learners, waits=waits)
    for _ in range(20):
        run.run(1)
        assert slow(live) == []
    run.speed[1] = 200.0
    run.run(9)
    assert slow(live) == [1]
    (found,) = live.slow.find(live.here, live.time)
    assert found.ratio == pytest.approx(0.2, abs=0.05)
    assert found.since <= live.time
    run.speed.clear()
    run.run(9)
    assert slow(live) == []


def test_the_slowest_comes_first(cluster: Make, live: LiveRun) -> None:
    run = cluster(6, speed={3: 400.0, 5: 100.0})
    run.run(10)
    assert slow(live) == [5, 3]


def test_one_that_waits_for_others_is_not_slow(cluster: Make, live: LiveRun) -> None:
    """All are as slow as the slowest; only one of them computes so long."""
    run = cluster(4, waits=True, speed={0: 100.0})
    run.run(10)
    rates = {learner.number: learner.rate(live.time) for learner in live.here}
    assert max(rates.values()) - min(rates.values()) < 1
    assert slow(live) == [0]


def test_equal_learners_that_vary_are_not_slow(cluster: Make, live: LiveRun) -> None:
    chance = random.Random(0)
    run = cluster(8)
    for _ in range(120):
        run.speed = {n: chance.uniform(800, 1200) for n in range(8)}
        run.run(1)
        assert slow(live) == []


def test_one_alone_is_not_slow(cluster: Make, live: LiveRun) -> None:
    cluster(1, speed={0: 1.0}).run(10)
    assert slow(live) == []


def status(run: Cluster, **fields: object) -> None:
    run.tell("status", total=100, free=1, leased=1, committed=1, **fields)


def test_one_stuck_in_a_step_while_all_wait_for_it(cluster: Make, live: LiveRun) -> None:
    """Nobody reports anything more: what their heartbeats tell decides."""
    run = cluster(4, waits=True)
    run.run(10)
    stuck = live.time
    while not slow(live) and live.time < stuck + 30:
        run.time += 1
        waited = run.time - stuck
        phases: dict[str, object] = {
            str(n): {"doing": "others", "seconds": waited} for n in (0, 1, 3)
        }
        status(run, silent={}, phases={**phases, "2": {"doing": "computing", "seconds": waited}})
    assert slow(live) == [2]
    assert live.time - stuck <= 10


def test_one_that_is_silent(cluster: Make, live: LiveRun) -> None:
    run = cluster(3)
    run.run(10)
    run.here.discard(1)
    for second in range(1, 10):
        run.run(1)
        status(run, silent={"1": float(second)}, phases={})
    assert slow(live) == [1]
    assert live.learners[1].silent_since == pytest.approx(10.0)


def test_all_that_report_nothing_are_equal(cluster: Make, live: LiveRun) -> None:
    run = cluster(3, waits=True)
    run.run(10)
    assert slow(live, at=live.time + 30) == []


def test_the_start_up_of_a_newcomer_is_no_slowness(cluster: Make, live: LiveRun) -> None:
    """Its first report holds the time in which it got its state."""
    run = cluster(3)
    run.run(10)
    run.join(3)
    run.here.discard(3)
    run.run(4)
    run.here.add(3)
    for _ in range(5):
        run.run(1)
        assert slow(live) == []


def test_the_slowest_link(cluster: Make, live: LiveRun) -> None:
    run = cluster(2)
    links = {
        "0": {"receiver": "learner 1", "bytes": 5_000_000, "seconds": 0.5},
        "1": {"receiver": "learner 0", "bytes": 5_000_000, "seconds": 5.0},
    }
    phases = {n: {"doing": "computing", "seconds": 0.1, "link": link} for n, link in links.items()}
    run.time = 5.0
    status(run, silent={}, phases=phases)
    found = live.links.slowest(live.time)
    assert [(link.sender, link.receiver, link.rate) for link in found] == [
        ("learner 1", "learner 0", 1e6),
        ("learner 0", "learner 1", 1e7),
    ]
    assert live.links.slowest(live.time + 60) == []


FAST = 10e6
"""Bytes a second of a link."""
Ends = tuple[int, int]


def beat(run: Cluster, rates: dict[Ends, float]) -> None:
    """A heartbeat of each sender, 2 s after the last: its slowest link, as in `LinkRates`."""
    run.time += 2.0
    phases: dict[str, object] = {}
    for sender in {sender for sender, _ in rates}:
        (rate, to) = min((rate, to) for (one, to), rate in rates.items() if one == sender)
        link = {"receiver": f"learner {to}", "bytes": rate * 2.0, "seconds": 2.0}
        phases[str(sender)] = {"doing": "computing", "seconds": 0.1, "link": link}
    status(run, silent={}, phases=phases)


def first(live: LiveRun) -> Ends:
    link = live.links.slowest(live.time)[0]
    return int(link.sender.split()[1]), int(link.receiver.split()[1])


@pytest.mark.parametrize("others", [(1, 0), (0, 2)], ids=["two senders", "one sender"])
def test_a_link_that_drops_to_a_fifth_is_named_first_within_ten_seconds(
    cluster: Make, live: LiveRun, others: Ends
) -> None:
    run = cluster(3)
    rates = {(0, 1): FAST, others: 0.9 * FAST}
    for _ in range(20):
        beat(run, rates)
        assert first(live) == others
    rates[0, 1] = FAST / 5
    dropped = live.time
    while first(live) != (0, 1) and live.time < dropped + 40:
        beat(run, rates)
    assert live.time - dropped <= 10


def test_a_link_that_has_recovered_hides_no_other(cluster: Make, live: LiveRun) -> None:
    """Its sender reports only the slowest: nothing more is heard of the one that is fast again."""
    run = cluster(3)
    rates = {(0, 1): FAST / 20, (0, 2): FAST}
    for _ in range(20):
        beat(run, rates)
        assert first(live) == (0, 1)
    rates = {(0, 1): FAST, (0, 2): FAST / 5}
    dropped = live.time
    while first(live) != (0, 2) and live.time < dropped + 40:
        beat(run, rates)
    assert live.time - dropped <= 10
