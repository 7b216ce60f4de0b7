"""What strategies that agree on models keep, hand to newcomers, and refuse to share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from unisono.errors import Cause, Diverged
from unisono.fabric import TensorVector, learner
from unisono.fabric.simulated.kernel import Kernel
from unisono.fabric.simulated.node import SimulatedNode
from unisono.strategies import Averaging, BlockMomentum, Nesterov, Plain, Sharding, SlowMo
from unisono.strategies.averaging import AveragingParticipant
from unisono.strategies.base import Snapshot, StateBundle, TrainedWork
from unisono.strategies.engines.sync_rounds import Contribution
from unisono.strategies.outer_steps import Outer

OUTERS = [Plain(), BlockMomentum(), BlockMomentum(nesterov=True), SlowMo(), Nesterov()]


class Client:
    """Keeps what the coordinator is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def tell(self, operation: Any) -> None:
        self.told.append(operation)


class Learner:
    """A replica that is only a vector."""

    def __init__(self) -> None:
        self.fabric = SimulatedNode(Kernel(), learner(0))
        self.client: Any = Client()
        self.parameters = random(0)
        self.events: list[dict[str, Any]] = []

    def export(self, *, optimizer: bool) -> StateBundle:
        return StateBundle(vectors={"parameters": self.parameters.copy()})

    def snapshot(self) -> Snapshot:
        return Snapshot(self.parameters.copy(), TrainedWork([(0, 1)], 4))

    def replace(self, value: TensorVector) -> None:
        self.parameters.assign(value)

    def add(self, delta: TensorVector) -> None:
        self.parameters.add(delta)

    def learning_rate(self) -> float:
        return 0.1

    def event(self, name: str, **fields: Any) -> None:
        self.events.append({"event": name, **fields})


def random(seed: int) -> TensorVector:
    generator = torch.Generator().manual_seed(seed)
    return TensorVector(torch.randn(6, dtype=torch.float64, generator=generator))


def begun(outer: Outer, sharding: Sharding = Sharding.STATIC) -> AveragingParticipant:
    replica: Any = Learner()
    participant = Averaging(outer=outer, sharding=sharding).participant(replica)
    participant.begin(replica.parameters.copy())
    return participant


def rounds(participant: AveragingParticipant, seeds: range) -> None:
    for seed in seeds:
        contribution = Contribution(participant.replica.snapshot().vector, TrainedWork())
        participant.conclude(random(seed), contribution, members=3)


def values(bundle: StateBundle) -> dict[str, list[float]]:
    found = {}
    for name, vector in bundle.vectors.items():
        assert isinstance(vector, TensorVector)
        found[name] = vector.tensor.tolist()
    return found


@pytest.mark.parametrize("outer", OUTERS, ids=repr)
@pytest.mark.parametrize("sharding", Sharding)
def test_another_goes_on_from_the_state_of_one(outer: Outer, sharding: Sharding) -> None:
    one, other = begun(outer, sharding), begun(outer, sharding)
    rounds(one, range(10, 14))
    other.load_state(one.state())
    assert values(other.state()) == values(one.state())
    for participant in (one, other):
        rounds(participant, range(20, 23))
    assert values(other.state()) == values(one.state())
    ours, theirs = one.consensus(), other.consensus()
    assert isinstance(ours, TensorVector) and isinstance(theirs, TensorVector)
    assert torch.equal(ours.tensor, theirs.tensor)


@pytest.mark.parametrize("outer", OUTERS, ids=repr)
def test_a_state_is_a_copy(outer: Outer) -> None:
    participant = begun(outer)
    rounds(participant, range(10, 12))
    bundle = participant.state()
    before = values(bundle)
    rounds(participant, range(12, 14))
    assert values(bundle) == before
    assert values(participant.state()) != before


def test_one_that_is_restored_begins_from_what_was_agreed() -> None:
    one, other = begun(Plain(), Sharding.DYNAMIC), begun(Plain(), Sharding.DYNAMIC)
    rounds(one, range(10, 12))
    replica: Any = other.replica
    replica.parameters.assign(random(99))
    other.restore(one.state())
    assert torch.equal(replica.parameters.tensor, random(11).tensor)


def test_drawn_the_steps_made_meanwhile_stay() -> None:
    participant = begun(Plain(), Sharding.DYNAMIC)
    replica: Any = participant.replica
    snapshot = replica.snapshot()
    step = random(5)
    replica.parameters.add(step)
    participant.conclude(random(7), Contribution(snapshot.vector, TrainedWork()), members=2)
    expected = random(7).tensor + step.tensor
    torch.testing.assert_close(replica.parameters.tensor, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_is_not_shared(value: float) -> None:
    participant = begun(Plain())
    replica: Any = participant.replica
    replica.parameters.tensor[3] = value
    with pytest.raises(Diverged, match="learner 0 are not finite at round 0: lower the learning"):
        participant.contribute()
    assert [told.cause for told in replica.client.told] == [Cause.DIVERGED]
