"""What messages cost between learners of one host and of several; what rounds cost then."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from unisono.fabric import COORDINATOR, learner
from unisono.simulation import run_loops
from unisono.simulation.hosts import Hosts, HostTable, Link, RackTable
from unisono.simulation.network import HostNetwork

MBIT = 1e6 / 8
MINIBATCHES = 48
FREE = Link(bandwidth_mbit=1e12, latency_ms=0.0)


def cluster(*learners: int, memory: Link = FREE, network: Link = FREE) -> HostNetwork:
    hosts = [HostTable(name=str(n), learners=count) for n, count in enumerate(learners)]
    return HostNetwork(Hosts(shared_memory=memory, network=network, host=hosts))


class Training:
    """A loop that counts its steps."""

    def __init__(self, strategy: object, inputs: int = 2, minibatches: int = MINIBATCHES) -> None:
        self.strategy = strategy
        self.inputs = inputs
        self.minibatches = minibatches
        self.steps: dict[int, int] = {}

    def __call__(self) -> None:
        torch.manual_seed(1)
        model = nn.Linear(self.inputs, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        data = TensorDataset(torch.randn(4 * self.minibatches, self.inputs))
        with unisono.Learner(model, optimizer, self.strategy) as learner:  # type: ignore[arg-type]
            for (x,) in learner.draw(data, batch_size=4):
                learner.step((model(x) - 1).square().mean())
                self.steps[learner.number] = self.steps.get(learner.number, 0) + 1


def test_a_sender_copies_one_message_after_the_other() -> None:
    network = cluster(3, memory=Link(bandwidth_mbit=8.0, latency_ms=1.0))
    assert network.delay(learner(0), learner(1), 1_000_000, 0.0) == pytest.approx(1.001)
    assert network.delay(learner(0), learner(2), 1_000_000, 0.5) == pytest.approx(1.501)
    assert network.delay(learner(1), learner(2), 1_000_000, 0.5) == pytest.approx(1.001)
    assert network.delay(learner(0), learner(1), 0, 5.0) == pytest.approx(0.001)


def test_hosts_share_their_link_in_both_directions() -> None:
    network = cluster(2, 2, 2, network=Link(bandwidth_mbit=8.0, latency_ms=1.0))
    megabyte = 1_000_000
    assert network.delay(learner(0), learner(2), megabyte, 0.0) == pytest.approx(1.002)
    # Another learner of the same host waits for the link; one of another host for the receiver's.
    assert network.delay(learner(1), learner(4), megabyte, 0.0) == pytest.approx(2.002)
    assert network.delay(learner(5), learner(3), megabyte, 0.5) == pytest.approx(1.502)
    # The other direction is free.
    assert network.delay(learner(3), learner(0), megabyte, 0.5) == pytest.approx(1.002)
    assert network.delay(learner(0), COORDINATOR, 100, 0.0) == pytest.approx(0.0, abs=1e-6)


def test_the_slower_of_two_links_decides() -> None:
    hosts = [HostTable(name="a"), HostTable(name="b", bandwidth_mbit=2.0, latency_ms=5.0)]
    free = Link(bandwidth_mbit=8.0, latency_ms=1.0)
    network = HostNetwork(Hosts(shared_memory=FREE, network=free, host=hosts))
    assert network.delay(learner(0), learner(1), 1_000_000, 0.0) == pytest.approx(4.006)
    assert network.delay(learner(1), learner(0), 1_000_000, 0.0) == pytest.approx(4.006)


def test_hosts_of_a_rack_share_its_uplink() -> None:
    slow = RackTable(name="left", bandwidth_mbit=4.0, latency_ms=2.0)
    other = RackTable(name="right", bandwidth_mbit=800.0, latency_ms=2.0)
    racks = ("left", "left", "right", "")
    hosts = [HostTable(name=str(n), rack=rack) for n, rack in enumerate(racks)]
    link = Link(bandwidth_mbit=8.0, latency_ms=1.0)
    network = HostNetwork(Hosts(shared_memory=FREE, network=link, rack=[slow, other], host=hosts))
    megabyte = 1_000_000
    # Inside the rack: the hosts' own links. To another one: the uplink, after each other.
    assert network.delay(learner(0), learner(1), megabyte, 0.0) == pytest.approx(1.002)
    assert network.delay(learner(1), learner(2), megabyte, 5.0) == pytest.approx(2.006)
    assert network.delay(learner(0), learner(3), megabyte, 5.0) == pytest.approx(4.004)
    assert network.delay(learner(3), learner(0), 1000, 5.0) == pytest.approx(0.005)
    used = {link.name: link for link in network.links()}
    assert (used["0"].sent, used["0"].received) == (2 * megabyte, 0)
    assert (used["left"].sent, used["left"].received) == (2 * megabyte, 0)
    assert (used["right"].sent, used["right"].received) == (0, megabyte)
    assert used["left"].busy_s == pytest.approx(4.0)


def test_short_messages_go_between_the_packets_of_long_ones() -> None:
    network = cluster(1, 1, network=Link(bandwidth_mbit=8.0, latency_ms=1.0))
    assert network.delay(learner(0), learner(1), 1_000_000, 0.0) == pytest.approx(1.002)
    assert network.delay(learner(0), learner(1), 1000, 0.1) == pytest.approx(0.003)
    assert network.delay(learner(0), learner(1), 1_000_000, 0.1) == pytest.approx(1.902)


@pytest.mark.parametrize("learners", [2, 4])
def test_allreduce_takes_the_time_of_its_messages(learners: int) -> None:
    """In each of k rounds everybody sends N - 1 parts of V / N bytes twice: k (c + round)."""
    cost, latency, bandwidth, inputs, rounds = 0.5, 0.01, 1e6, 50_000, 6
    memory = Link(bandwidth_mbit=bandwidth / MBIT, latency_ms=1000 * latency)
    short, long = (
        run_loops(
            Training("allreduce", inputs, many * learners),
            learners=learners,
            cost=cost,
            network=cluster(learners, memory=memory),
        ).seconds
        for many in (rounds, 2 * rounds)  # the difference is without joining and leaving
    )
    send = latency + (learners - 1) / learners * 4 * inputs / bandwidth
    assert long - short == pytest.approx(rounds * (cost + 2 * send), rel=0.01)


def test_a_slow_learner_slows_allreduce_and_leaves_gossip_alone() -> None:
    def run(strategy: object, slow: float) -> tuple[float, dict[int, int]]:
        training = Training(strategy, minibatches=160)
        found = run_loops(training, learners=4, slowness={0: slow}, network=cluster(4))
        return found.seconds, training.steps

    equal, _ = run("allreduce", 1.0)
    waiting, _ = run("allreduce", 5.0)
    assert waiting == pytest.approx(5 * equal, rel=0.02)
    flowing, steps = run(unisono.GossipRandom(every=1), 5.0)
    # 3 + 1/5 learners share the work; at the end two more steps of the slow one are waited for.
    assert flowing <= 160 / 3.2 + 2 * 5 + 1
    assert min(steps[n] for n in (1, 2, 3)) >= 160 / 3.2 - 5


def test_computing_that_varies_has_the_mean_that_was_asked_for() -> None:
    training = Training("solo")
    varied = run_loops(training, learners=1, spread={0: 0.3}, network=cluster(1))
    again = run_loops(training, learners=1, spread={0: 0.3}, network=cluster(1))
    assert varied.computed_s == again.computed_s
    assert varied.computed_s[0] != MINIBATCHES
    assert varied.computed_s[0] == pytest.approx(MINIBATCHES, rel=0.15)


def test_sending_beside_computing_takes_the_core() -> None:
    """delay-by-one sends a round's parts while the next minibatch is computed."""
    cost, inputs, rounds = 0.5, 50_000, 6
    memory = Link(bandwidth_mbit=1e6 / MBIT, latency_ms=0.0)
    short, long = (
        run_loops(
            Training("delay-by-one", inputs, 2 * many),
            learners=2,
            cost=cost,
            network=cluster(2, memory=memory),
        ).seconds
        for many in (rounds, 2 * rounds)
    )
    send = 2 * inputs / 1e6  # half of the gradient to the other, and half of the mean
    assert long - short == pytest.approx(rounds * (cost + 2 * send), rel=0.02)
