"""What rounds in few bits leave for the next one, against a replay in plain numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unisono.fabric import Address, Gone, Member, Precision, SizeVector, TensorVector, View, learner
from unisono.fabric.quantize import dequantize, quantize
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.strategies.averaging import Averaging
from unisono.strategies.base import Sharding
from unisono.strategies.engines.collective import Aborted, Collective
from unisono.strategies.engines.error_feedback import Residuals, send_off
from unisono.strategies.engines.sync_rounds import SyncParticipant
from unisono.strategies.selection import Candidate
from unisono.testing.faults import Join
from unisono.testing.losses import Targets
from unisono.testing.simulated import ToyCluster

Numbers = NDArray[np.float64]
FEW = [Precision.INT8, Precision.INT4, Precision.ONE_BIT]
ALL = [Precision.BFLOAT16, *FEW]
SIZE = 700


def rounded(values: Numbers, precision: Precision) -> Numbers:
    assert precision.bits is not None
    tensor = torch.from_numpy(values)
    return dequantize(
        quantize(tensor, precision.bits), precision.bits, len(values), tensor.dtype
    ).numpy()


@pytest.mark.parametrize("precision", ALL)
def test_what_is_sent_and_what_is_left_are_the_sum_of_all(precision: Precision) -> None:
    """Over many rounds of very different sizes; and the rest is no more than one round's."""
    source = torch.Generator().manual_seed(0)
    residual = TensorVector.zeros(SIZE)
    total, sent = torch.zeros(SIZE).double(), torch.zeros(SIZE).double()
    largest = 0.0
    for number in range(200):
        change = 10.0 ** (number % 5 - 3) * torch.randn(SIZE, generator=source)
        total += change.double()
        largest = max(largest, float(change.abs().max()))
        residual.add(TensorVector(change))
        coded = send_off(residual, precision)
        sent += coded.decoded(precision, residual).tensor.double()
    rest = residual.tensor.double()
    torch.testing.assert_close(sent + rest, total, rtol=0, atol=1e-5 * largest)
    if precision is not Precision.ONE_BIT:
        steps = {Precision.BFLOAT16: 2**7, Precision.INT8: 127, Precision.INT4: 7}[precision]
        # A residual of at most r is in the next vector, so r <= (largest + r) / (2 steps).
        assert rest.abs().max() <= largest / (2 * steps - 1) * 1.01


def run(
    members: int,
    work: Callable[[SimulatedNode, Collective], None],
    precision: Precision,
) -> None:
    kernel = Kernel(network=SimulatedNetwork(latency=0.01), limit=1000.0)
    addresses = [learner(number) for number in range(members)]
    for address in addresses:
        node = SimulatedNode(kernel, address)
        node.set_members(View(1, tuple(Member(address, "") for address in addresses)))
        kernel.main(node, lambda node=node: work(node, Collective(node, precision)))  # type: ignore[misc]
    kernel.run()


def bounds(members: int, fragments: int = 1) -> list[tuple[int, int]]:
    """The slices of all members: of each fragment as many."""
    ends = [SIZE * i // fragments for i in range(fragments + 1)]
    return [
        (a + (b - a) * i // members, a + (b - a) * (i + 1) // members)
        for a, b in pairwise(ends)
        for i in range(members)
    ]


def replay(
    changes: Numbers, weights: Sequence[int], precision: Precision, fragments: int
) -> list[Numbers]:
    """The formula of the module: rounds x members x numbers in, the mean of each round out."""
    rounds, members, _ = changes.shape
    unsent, mean_unsent = np.zeros((members, SIZE)), np.zeros(SIZE)
    means = []
    for number in range(rounds):
        mean = np.zeros(SIZE)
        for place, (start, stop) in enumerate(bounds(members, fragments)):
            for member in range(members):
                total = changes[number, member, start:stop] + unsent[member, start:stop]
                sent = total if member == place % members else rounded(total, precision)
                if weights[member]:
                    unsent[member, start:stop] = total - sent
                mean[start:stop] += weights[member] / sum(weights) * sent
            total = mean[start:stop] + mean_unsent[start:stop]
            mean[start:stop] = rounded(total, precision)
            mean_unsent[start:stop] = total - mean[start:stop]
        means.append(mean)
    return means


@pytest.mark.parametrize("precision", FEW)
@pytest.mark.parametrize("weights", [(1, 1), (1, 2, 4), (3, 0, 1, 2)])
@pytest.mark.parametrize(("has_common", "fragments"), [(False, 1), (True, 1), (True, 3)])
def test_rounds_are_those_of_the_formula(
    precision: Precision, weights: tuple[int, ...], has_common: bool, fragments: int
) -> None:
    """Each moves the common vector, from which the next changes are counted."""
    members, rounds = len(weights), 6
    source = np.random.default_rng(members)
    changes = source.normal(size=(rounds, members, SIZE)) * source.exponential(size=(rounds, 1, 1))
    expected = replay(changes, weights, precision, fragments)
    found: dict[int, list[Numbers]] = {}
    addresses = [learner(number) for number in range(members)]

    def work(node: SimulatedNode, collective: Collective) -> None:
        me = node.address.number
        common = TensorVector(torch.zeros(SIZE, dtype=torch.float64))
        found[me] = []
        for number in range(rounds):
            x = TensorVector(torch.from_numpy(changes[number, me]).clone())
            if has_common:
                x.add(common)
            before, result = x.copy(), x.like()
            candidate = Candidate(weights[me], None)
            collective.mean(
                addresses,
                (number, 0),
                x,
                candidate,
                (),
                result,
                common=common if has_common else None,
                fragments=fragments,
            )
            collective.settle(result, counted=weights[me] > 0)
            assert torch.equal(x.tensor, before.tensor)
            moved = result.tensor - common.tensor if has_common else result.tensor
            found[me].append(moved.numpy().copy())
            if has_common:
                common.assign(result)

    run(members, work, precision)
    for means in found.values():
        np.testing.assert_allclose(means, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("precision", ALL)
def test_a_round_that_breaks_or_is_not_finite_changes_nothing(precision: Precision) -> None:
    """Attempts that broke, and gradients that nobody steps with, leave the residuals alone."""
    a, b = learner(0), learner(1)
    checked = []

    def work(node: SimulatedNode, collective: Collective) -> None:
        def mean(number: int, x: torch.Tensor, attempt: int = 0) -> TensorVector:
            vector = TensorVector(x)
            result = vector.like()
            collective.mean([a, b], (number, attempt), vector, Candidate(1, None), (), result)
            return result

        source = torch.Generator().manual_seed(node.address.number)
        first = mean(0, torch.randn(SIZE, generator=source))
        collective.settle(first, counted=True)
        kept = {name: v.copy() for name, v in collective.residuals.vectors().items()}
        assert len(kept) == 2 and all(v.norm() > 0 for v in kept.values())
        bad = torch.randn(SIZE, generator=source)
        bad[5] = float("nan")
        result = mean(1, bad)
        assert not result.finite()
        collective.settle(result, counted=True)
        if node.address == a:
            node.sleep(1.0)
            collective._abort([a, b], (2, 0))
            node.sleep(1.0)
        else:
            with pytest.raises((Gone, Aborted)):
                mean(2, torch.randn(SIZE, generator=source))
            node.sleep(3.0 - node.now())
        now = collective.residuals.vectors()
        assert now.keys() == kept.keys()
        assert all(torch.equal(now[name].tensor, kept[name].tensor) for name in kept)  # type: ignore[attr-defined]
        x = torch.randn(SIZE, generator=source)
        collective.settle(mean(2, x, attempt=1), counted=False)
        left = collective.residuals.vectors()
        assert torch.equal(left["residual"].tensor, kept["residual"].tensor)  # type: ignore[attr-defined]
        checked.append(node.address)

    run(2, work, precision)
    assert sorted(checked) == [a, b]


@pytest.mark.parametrize("precision", ALL)
def test_one_that_is_left_alone_adds_what_it_had_not_sent(precision: Precision) -> None:
    """And alone from the start it gets exactly its own vector."""
    a, b = learner(0), learner(1)

    def work(node: SimulatedNode, collective: Collective) -> None:
        def mean(members: list[Address], number: int, vector: TensorVector) -> TensorVector:
            result = vector.like()
            common = TensorVector(torch.ones(SIZE))
            candidate = Candidate(1, None)
            collective.mean(members, (number, 0), vector, candidate, (), result, common=common)
            collective.settle(result, counted=True)
            return result

        source = torch.Generator().manual_seed(node.address.number)
        x = TensorVector(torch.randn(SIZE, generator=source))
        assert torch.equal(mean([node.address], 0, x).tensor, x.tensor)
        mean([a, b], 1, x)
        unsent = collective.residuals.own
        assert isinstance(unsent, TensorVector) and unsent.norm() > 0
        found = mean([node.address], 2, x)
        torch.testing.assert_close(found.tensor, x.tensor + unsent.tensor, rtol=0, atol=0)
        assert collective.residuals.vectors() == {}
        assert torch.equal(mean([node.address], 3, x).tensor, x.tensor)

    run(2, work, precision)


@pytest.mark.parametrize("precision", list(Precision))
def test_bytes_are_counted_as_they_travel(precision: Precision) -> None:
    """With values, and without any: a simulation of time alone."""
    sent: dict[type, list[int]] = {TensorVector: [], SizeVector: []}
    addresses = [learner(number) for number in range(3)]
    for kind, vector in ((TensorVector, TensorVector.zeros(SIZE)), (SizeVector, SizeVector(SIZE))):

        def work(node: SimulatedNode, collective: Collective, kind=kind, vector=vector) -> None:  # type: ignore[no-untyped-def]
            own = vector.copy()
            collective.mean(addresses, (0, 0), own, Candidate(1, None), (), own.like())
            collective.settle(own, counted=True)
            sent[kind].append(node.bytes_sent)
            assert collective.nbytes(own) == SizeVector(SIZE).encoded(precision).nbytes

        run(3, work, precision)
    slices = [SizeVector(stop - start).encoded(precision).nbytes for start, stop in bounds(3)]
    assert sum(sent[TensorVector]) == sum(sent[SizeVector]) == 2 * 2 * sum(slices)


def test_a_newcomer_has_left_nothing_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its donor has not sent is the donor's to send."""
    donors, newcomers = [], []
    send, receive = SyncParticipant._send_state, SyncParticipant._receive_state

    def spy_on_donor(participant: SyncParticipant, newcomer: Address) -> None:
        donors.append(len(participant._collective.residuals.vectors()))
        send(participant, newcomer)

    def spy_on_newcomer(participant: SyncParticipant, donor: Address) -> None:
        receive(participant, donor)
        newcomers.append(len(participant._collective.residuals.vectors()))

    monkeypatch.setattr(SyncParticipant, "_send_state", spy_on_donor)
    monkeypatch.setattr(SyncParticipant, "_receive_state", spy_on_newcomer)
    for sharding in Sharding:
        strategy = Averaging(every=8, sharding=sharding, precision=Precision.INT4)
        loss = Targets(distance=10.0)
        ToyCluster(strategy=strategy, learners=2, total=60, loss=loss, faults=[Join(9.5, 2)]).run()
    assert max(donors) == 2
    assert newcomers and not any(newcomers)


def test_residuals_are_kept_and_read_again() -> None:
    means = {(3, 7): TensorVector(torch.randn(4)), (13, 17): TensorVector(torch.randn(4))}
    made = Residuals(TensorVector(torch.randn(20)), dict(means))
    vectors = {**made.vectors(), "agreed": TensorVector.zeros(20)}
    found = Residuals.load(vectors)
    assert list(vectors) == ["agreed"]
    assert made.own is not None and made.own.equals(found.own)
    assert found.means.keys() == means.keys()
    assert all(mean.equals(found.means[bounds]) for bounds, mean in means.items())
    assert Residuals.load({}) == Residuals() and Residuals().vectors() == {}
