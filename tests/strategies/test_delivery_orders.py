"""Every order in which messages can be delivered, where they can all be walked.

One collective of three members, and two of two, are walked completely. Of whole runs (two rounds,
with joining, dealing, reporting and leaving: 50 to 140 deliveries) stretches of a few deliveries
are walked completely, one after the other; the numbers below say how many orders that were.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.delivery_orders import walk_stretches
from unisono.fabric import TensorVector, learner
from unisono.fabric.simulated.kernel import Kernel
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import ExhaustiveScheduler
from unisono.strategies import ADPSGD, AllReduce, Averaging, DelayByOne, GossipFixed, Sharding
from unisono.strategies.base import Strategy
from unisono.strategies.engines.collective import Collective
from unisono.strategies.selection import Candidate
from unisono.testing import invariants
from unisono.testing.ledger import numbers
from unisono.testing.losses import Marks
from unisono.testing.simulated import ToyCluster

STRATEGIES: dict[str, Strategy] = {
    "allreduce": AllReduce(),
    "static": Averaging(every=4, sharding=Sharding.STATIC),
    "dynamic": Averaging(every=4, sharding=Sharding.DYNAMIC),
    "gossip": GossipFixed(every=4),
    "adpsgd": ADPSGD(every=4),
    "delay": DelayByOne(),
}


def collectives(members: int, count: int, scheduler: ExhaustiveScheduler) -> None:
    """Means of means, without a coordinator; all must have the same bits, and the right ones."""
    kernel = Kernel(scheduler=scheduler)
    addresses = [learner(number) for number in range(members)]
    ends: dict[int, TensorVector] = {}

    def work(node: SimulatedNode, number: int) -> None:
        collective = Collective(node)
        x = TensorVector.zeros(5)
        x.tensor += number
        result = x.like()
        for step in range(count):
            candidate = Candidate(number + 1, None)
            note = ((number, number + 1),)
            notes = collective.mean(addresses, (step, 0), x, candidate, note, result).notes
            assert notes == {a: ((a.number, a.number + 1),) for a in addresses}
            x.assign(result)
        ends[number] = x

    for address in addresses:
        node = SimulatedNode(kernel, address)
        kernel.main(node, lambda node=node, number=address.number: work(node, number))  # type: ignore[misc]
    kernel.run()
    mean = sum(i * (i + 1) for i in range(members)) / sum(i + 1 for i in range(members))
    for x in ends.values():
        assert np.array_equal(numbers(x), numbers(ends[0]))
        np.testing.assert_allclose(numbers(x), mean, rtol=1e-6)


@pytest.mark.parametrize(("members", "count", "orders"), [(2, 1, 1), (2, 2, 1), (3, 1, 196)])
def test_every_order_of_a_collective(members: int, count: int, orders: int) -> None:
    """Complete walks: two members have no choice that matters, three have 196."""
    scheduler = ExhaustiveScheduler()
    assert scheduler.walk(lambda s: collectives(members, count, s), bound=3000)
    assert scheduler.orders == orders


def whole_run(name: str, learners: int, scheduler: ExhaustiveScheduler) -> None:
    total = 2 * learners
    marks = Marks(total, learners, 0.1)
    run = ToyCluster(
        strategy=STRATEGIES[name],
        learners=learners,
        total=total,
        scheduler=scheduler,
        loss=marks,
        prefetch=0,
    ).run()
    exchanges = name in ("gossip", "adpsgd")
    least = 0 if exchanges else 2  # who is only asked begins none
    assert all(result.rounds >= least for result in run.survivors)
    invariants.all_committed(run)
    invariants.all_trained(run, calm=True)
    invariants.nothing_lost(run)
    (invariants.sum_kept if exchanges else invariants.mean_kept)(run)
    invariants.same_end(run, exactly=name != "dynamic")
    invariants.kept_once(run, marks)


def walk(name: str, learners: int, length: int, step: int, shift: int = 0) -> int:
    """How many orders there are of so many deliveries in a row; all of them are walked."""
    walked = walk_stretches(
        lambda scheduler: whole_run(name, learners, scheduler), length, step=step, shift=shift
    )
    assert walked.complete
    assert walked.deliveries >= 40
    return walked.orders


@pytest.mark.parametrize(
    ("name", "learners", "length", "step", "orders"),
    [
        ("allreduce", 2, 4, 4, 125),
        ("static", 2, 4, 4, 125),
        ("dynamic", 2, 4, 4, 225),
        ("gossip", 2, 4, 4, 225),
        ("adpsgd", 2, 4, 4, 225),
        ("delay", 2, 4, 4, 125),
        pytest.param("allreduce", 2, 4, 2, 250, marks=pytest.mark.long),
        pytest.param("static", 2, 4, 2, 250, marks=pytest.mark.long),
        pytest.param("dynamic", 2, 4, 2, 450, marks=pytest.mark.long),
        pytest.param("gossip", 2, 4, 2, 450, marks=pytest.mark.long),
        pytest.param("adpsgd", 2, 4, 2, 450, marks=pytest.mark.long),
        pytest.param("delay", 2, 4, 2, 250, marks=pytest.mark.long),
        pytest.param("allreduce", 3, 2, 3, 250, marks=pytest.mark.long),
        pytest.param("static", 3, 2, 3, 250, marks=pytest.mark.long),
        pytest.param("dynamic", 3, 2, 6, 200, marks=pytest.mark.long),
        pytest.param("gossip", 3, 2, 6, 200, marks=pytest.mark.long),
        pytest.param("adpsgd", 3, 2, 6, 200, marks=pytest.mark.long),
        pytest.param("delay", 3, 2, 3, 250, marks=pytest.mark.long),
    ],
)
def test_every_order_of_a_few_deliveries(
    name: str,
    learners: int,
    length: int,
    step: int,
    orders: int,
    record_property: Callable[[str, object], None],
) -> None:
    """All are walked; at the time of writing, ``orders`` and a few more."""
    walked = walk(name, learners, length, step)
    record_property("orders", walked)
    assert walked >= orders // 2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(
    ("name", "learners", "length"),
    [(name, 2, 8) for name in STRATEGIES] + [(name, 3, 4) for name in STRATEGIES],
)
def test_every_order_of_more_deliveries(name: str, learners: int, length: int, shift: int) -> None:
    assert walk(name, learners, length, length // 2, shift) > 500


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_orders_of_two_collectives_of_three() -> None:
    """Not all of them: 300,000 were not enough to walk all."""
    scheduler = ExhaustiveScheduler()
    scheduler.walk(lambda s: collectives(3, 2, s), bound=30_000)
    assert scheduler.orders > 3_000
