"""The coordinator's word on a run, once a second: leases, silence, and what learners do."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from unisono.coordinator.service import MOST_BEAT_S
from unisono.fabric.api import Traffic
from unisono.learner.link_rates import LinkRates
from unisono.simulation import Kill, Pause, run_loops
from unisono.simulation.hosts import Hosts, HostTable, Link
from unisono.simulation.network import HostNetwork

MINIBATCHES = 120


def loop(strategy: Any, minibatches: int = MINIBATCHES) -> None:
    torch.manual_seed(1)
    model = nn.Linear(2, 1)
    data = TensorDataset(torch.randn(4 * minibatches, 2))
    with unisono.Learner(model, torch.optim.SGD(model.parameters(), lr=0.01), strategy) as learner:
        for (x,) in learner.draw(data, batch_size=4):
            learner.step(model(x).square().mean())


def statuses(strategy: Any = "averaging", **options: Any) -> list[dict[str, Any]]:
    run = run_loops(lambda: loop(strategy), learners=3, cost=0.5, **options)
    return [event for event in run.events if event["event"] == "status"]


def test_every_minibatch_is_free_leased_or_committed() -> None:
    found = statuses()
    opened = [event for event in found if event["total"]]
    assert all(e["free"] + e["leased"] + e["committed"] == e["total"] for e in opened)
    assert found[-1]["committed"] == found[-1]["total"] == MINIBATCHES
    times = [event["time"] for event in found]
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps[:-1]) >= 1.0 and max(gaps) <= MOST_BEAT_S + 0.5


def test_what_is_trained_again_is_counted() -> None:
    dynamic = unisono.Averaging(every=32, sharding=unisono.Sharding.DYNAMIC)
    last = statuses(dynamic, faults=[Kill(7.3, 1)])[-1]
    assert last["returned"] > 0 and last["redone"] > 0


def test_each_choice_of_the_pace_is_an_event_with_dynamic_sharding() -> None:
    far = HostNetwork(
        Hosts(
            shared_memory=Link(bandwidth_mbit=1000.0, latency_ms=400.0),
            host=[HostTable(name="one", learners=2)],
        )
    )
    run = run_loops(lambda: loop("averaging", 3200), learners=2, cost=0.5, network=far)
    (first, then) = [e for e in run.events if e["event"] == "pace"]
    assert (first["round"], first["minibatches"]) == (0, 16)
    assert then["minibatches"] == 32
    of_rounds: Counter[int] = Counter()
    for event in run.events:
        if event["event"] == "round":
            of_rounds[event["round"]] += event["weight"]
    assert of_rounds[then["round"] - 1] < 1.5 * 2 * 16 * 4 < of_rounds[then["round"] + 1]


@pytest.mark.parametrize("timeout", [10.0, 60.0])
def test_heartbeats_tell_who_computes_and_who_waits(timeout: float) -> None:
    """However long a silent learner is believed to live."""
    found = statuses("allreduce", slowness={2: 20.0}, timeout=timeout)
    phases = [event["phases"] for event in found if event["phases"]]
    doing = {(n, phase["doing"]) for each in phases for n, phase in each.items()}
    assert ("2", "computing") in doing
    assert ("0", "others") in doing and ("1", "others") in doing
    assert ("0", "computing") not in doing
    assert max(each["2"]["seconds"] for each in phases if "2" in each) > 5


def test_who_is_silent_is_told_before_it_counts_as_dead() -> None:
    found = statuses("averaging", faults=[Pause(5.0, 1, 8.0)])
    silent = [(event["time"], event["silent"]) for event in found if event["silent"]]
    assert {n for _, each in silent for n in each} == {"1"}
    assert silent[0][0] < 5.0 + 10.0 and silent[0][1]["1"] > MOST_BEAT_S


class Links:
    """A fabric that has sent something."""

    def __init__(self) -> None:
        self.time = 100.0
        self.traffic = {unisono.fabric.learner(n): Traffic() for n in range(3)}

    def now(self) -> float:
        return self.time

    def sent(self, to: int, nbytes: int, seconds: float) -> None:
        traffic = self.traffic[unisono.fabric.learner(to)]
        traffic.bytes += nbytes
        traffic.seconds += seconds


def test_the_slowest_link_since_the_last_look() -> None:
    fabric = Links()
    rates = LinkRates(fabric)  # type: ignore[arg-type]
    assert rates.slowest() is None
    fabric.sent(0, 1000, 0.0)  # inside the machine
    fabric.sent(1, 1000, 1.0)
    fabric.sent(2, 1000, 2.0)
    found = rates.slowest()
    assert found is not None
    assert (found.receiver, found.bytes, found.seconds) == ("learner 2", 1000, 2.0)
    assert rates.slowest() is None
    fabric.sent(1, 500, 5.0)
    found = rates.slowest()
    assert found is not None and (found.receiver, found.bytes) == ("learner 1", 500)


def test_what_is_still_on_its_way_counts() -> None:
    """A link that takes a minute for a message is to be seen before the minute is over."""
    fabric = Links()
    rates = LinkRates(fabric)  # type: ignore[arg-type]
    traffic = fabric.traffic[unisono.fabric.learner(1)]
    traffic.bytes, traffic.carrying_since = 1000, 90.0
    found = rates.slowest()
    assert found is not None and (found.bytes, found.seconds) == (1000, 10.0)
    fabric.time = 110.0
    found = rates.slowest()
    assert found is not None and (found.bytes, found.seconds) == (1000, 20.0)
    traffic.carrying_since, traffic.seconds = None, 21.0
    found = rates.slowest()
    assert found is not None and (found.bytes, found.seconds) == (1000, 21.0)
    assert rates.slowest() is None
