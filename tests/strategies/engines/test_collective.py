"""The weighted mean of everybody, and what is left of it when somebody does not come."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from unisono.fabric import CREDIT, Address, Gone, TensorVector, View, learner
from unisono.fabric.api import Member
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.strategies.engines.collective import Aborted, Collective
from unisono.strategies.selection import Candidate, KeepGood
from unisono.testing.ledger import numbers

TrainedWork = Callable[[SimulatedNode, Collective], None]


def view(version: int, *members: Address) -> View:
    return View(version, tuple(Member(address, "") for address in members))


def together(count: int, work: TrainedWork, seed: int = 0) -> None:
    kernel = Kernel(
        scheduler=SeededScheduler(seed), network=SimulatedNetwork(latency=0.01), limit=1000.0
    )
    members = [learner(number) for number in range(count)]
    for address in members:
        node = SimulatedNode(kernel, address)
        node.set_members(view(1, *members))
        kernel.main(node, lambda node=node: work(node, Collective(node)))  # type: ignore[misc]
    kernel.run()


@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 3, 17])
@pytest.mark.parametrize("fragments", [1, 4])
def test_it_is_the_weighted_mean(members: int, size: int, fragments: int) -> None:
    """Also with fewer numbers than members or fragments, and with members of weight zero."""
    source = np.random.default_rng(members)
    values = source.normal(size=(members, size))
    weights = [0, 3, 1, 0, 2][:members]
    addresses = [learner(number) for number in range(members)]
    results = {}

    def work(node: SimulatedNode, collective: Collective) -> None:
        number = node.address.number
        x = TensorVector(torch.tensor(values[number]))
        result = x.like()
        candidate = Candidate(weights[number], None)
        seen = []

        def between(part: tuple[int, int]) -> None:
            """What was given is the mean already, whatever others do in the meantime."""
            seen.append((part, numbers(result)[slice(*part)]))
            node.sleep(0.1 * number)

        note = ((number, number + 1),)
        parts = collective.mean(
            addresses, (0, 0), x, candidate, note, result, fragments=fragments, between=between
        )
        assert len(seen) == fragments - 1
        for part, mean in seen:
            assert np.array_equal(mean, numbers(result)[slice(*part)])
        assert parts.notes == {a: ((a.number, a.number + 1),) for a in addresses}
        assert not parts.left_out
        assert np.array_equal(numbers(x), values[number])
        results[number] = numbers(result)

    together(members, work)
    shares = np.array(weights) / sum(weights) if sum(weights) else np.full(members, 1 / members)
    expected = shares @ values
    for result in results.values():
        np.testing.assert_allclose(result, expected, rtol=1e-12)
        assert np.array_equal(result, results[0])


def test_a_rule_decides_whose_vectors_are_in_it() -> None:
    """The second is 1.1 worse than the best, the last has trained nothing."""
    said = [Candidate(4, -2.0), Candidate(4, -3.1), Candidate(2, -2.9), Candidate(0, None)]
    addresses = [learner(number) for number in range(4)]
    values = np.random.default_rng(0).normal(size=(4, 6))
    results = {}

    def work(node: SimulatedNode, collective: Collective) -> None:
        number = node.address.number
        x = TensorVector(torch.tensor(values[number]))
        result = x.like()
        rule = KeepGood(tell=lambda: said[number].objective)
        note = ((number, number + 1),)
        parts = collective.mean(addresses, (3, 0), x, said[number], note, result, rule)
        assert parts.left_out == {addresses[1]}
        results[number] = numbers(result)

    together(4, work)
    for result in results.values():
        np.testing.assert_allclose(result, (4 * values[0] + 2 * values[2]) / 6, rtol=1e-12)
        assert np.array_equal(result, results[0])


@pytest.mark.parametrize("weight", [1, 3, 7, 12345])
def test_one_member_gets_exactly_its_own_back(weight: int) -> None:
    """Weights are normalised before they multiply: 3 x / 3 is not x."""
    x = TensorVector(torch.randn(50, generator=torch.Generator().manual_seed(1)))

    def work(node: SimulatedNode, collective: Collective) -> None:
        result = x.like()
        collective.mean([node.address], (0, 0), x, Candidate(weight, None), (), result)
        assert torch.equal(result.tensor, x.tensor)

    together(1, work)


@pytest.mark.parametrize("seed", range(10))
def test_the_bits_do_not_depend_on_the_schedule(seed: int) -> None:
    values = np.random.default_rng(0).normal(size=(4, 40))
    addresses = [learner(number) for number in range(4)]
    expected: TensorVector = TensorVector(torch.tensor(values[0] * 0.25))
    for row in values[1:]:
        expected.add(TensorVector(torch.tensor(row)), 0.25)

    def work(node: SimulatedNode, collective: Collective) -> None:
        x = TensorVector(torch.tensor(values[node.address.number]))
        result = x.like()
        collective.mean(addresses, (0, 0), x, Candidate(5, None), (), result)
        assert torch.equal(result.tensor, expected.tensor)

    together(4, work, seed)


def test_a_death_ends_it_for_everybody() -> None:
    a, b, c = (learner(number) for number in range(3))
    ends: dict[int, type[BaseException]] = {}

    def work(node: SimulatedNode, collective: Collective) -> None:
        if node.address == c:
            return
        x = TensorVector.zeros(6)
        node.spawn("news", lambda: (node.sleep(1.0), node.set_members(view(2, a, b)))[1])
        try:
            collective.mean([a, b, c], (0, 0), x, Candidate(1, None), (), x.like())
        except (Gone, Aborted) as end:
            ends[node.address.number] = type(end)

    together(3, work)
    assert set(ends) == {0, 1}
    assert Gone in ends.values()


def test_many_broken_ones_in_a_row_use_up_nobodys_credit() -> None:
    """What the others sent for an attempt that broke is taken in, or they could not send more."""
    a, b, c = (learner(number) for number in range(3))
    attempts = 3 * CREDIT
    done: list[int] = []

    def work(node: SimulatedNode, collective: Collective) -> None:
        if node.address == c:
            # It gives up each attempt, when the others have sent each other all they can.
            for attempt in range(attempts):
                node.sleep(2.0 * attempt + 1.0 - node.now())
                collective._abort([a, b], (0, attempt))
            return
        x = TensorVector.zeros(6)
        for attempt in range(attempts):
            with pytest.raises((Gone, Aborted)):
                collective.mean([a, b, c], (0, attempt), x, Candidate(1, None), (), x.like())
            node.sleep(2.0 * (attempt + 1) - node.now())
        done.append(node.address.number)

    together(3, work)
    assert sorted(done) == [0, 1]


def test_one_that_gave_up_an_earlier_one_is_not_waited_for() -> None:
    """It waits to be helped over that, perhaps by the very member that waits for it here."""
    a, b = learner(0), learner(1)
    ends: list[str] = []

    def work(node: SimulatedNode, collective: Collective) -> None:
        x = TensorVector.zeros(6)
        if node.address == b:
            collective._abort([a], (0, 0))
            node.sleep(5.0)
            return
        with pytest.raises(Aborted):
            collective.mean([a, b], (1, 0), x, Candidate(1, None), (), x.like())
        ends.append("woken")

    together(2, work)
    assert ends == ["woken"]


def test_one_that_was_helped_over_it_is() -> None:
    a, b = learner(0), learner(1)
    results: list[TensorVector] = []

    def work(node: SimulatedNode, collective: Collective) -> None:
        x = TensorVector(torch.full((6,), float(node.address.number)))
        if node.address == b:
            collective._abort([a], (0, 0))
        else:
            node.sleep(1.0)
        result = x.like()
        collective.mean([a, b], (1, 0), x, Candidate(1, None), (), result)
        results.append(result)

    together(2, work)
    assert [r.tensor.tolist() for r in results] == [[0.5] * 6] * 2
