"""Rounds in fewer bits: fewer bytes, the same result everywhere, and the mean stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from unisono.errors import UserError
from unisono.fabric import Member, Precision, SizeVector, TensorVector, View, learner
from unisono.fabric.simulated.kernel import Kernel, SimulatedNetwork
from unisono.fabric.simulated.node import SimulatedNode
from unisono.simulation.loops import run_loops
from unisono.strategies import ADPSGD, Averaging, GossipFixed, GossipRandom, Server
from unisono.strategies.engines.collective import Collective
from unisono.strategies.registry import make
from unisono.strategies.selection import Candidate

COARSE = Precision.BFLOAT16


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("has_common", [False, True])
def test_the_mean_is_the_same_everywhere_and_near(members: int, has_common: bool) -> None:
    kernel = Kernel(network=SimulatedNetwork(latency=0.01), limit=1000.0)
    addresses = [learner(number) for number in range(members)]
    source = torch.Generator().manual_seed(members)
    size = 101
    common = torch.randn(size, generator=source) if has_common else torch.zeros(size)
    change = 0.01 * torch.randn(members, size, generator=source)
    results, sent = {}, []

    def work(node: SimulatedNode, collective: Collective) -> None:
        x = TensorVector(common + change[node.address.number])
        before, result = x.tensor.clone(), x.like()
        reference = TensorVector(common) if has_common else None
        candidate = Candidate(1 + node.address.number, None)
        collective.mean(addresses, (0, 0), x, candidate, [], result, common=reference)
        results[node.address.number] = result.tensor
        sent.append(node.bytes_sent)
        assert torch.equal(x.tensor, before)
        assert collective.nbytes(x) == 2 * size

    for address in addresses:
        node = SimulatedNode(kernel, address)
        node.set_members(View(1, tuple(Member(address, "") for address in addresses)))
        kernel.main(node, lambda node=node: work(node, Collective(node, COARSE)))  # type: ignore[misc]
    kernel.run()
    weights = torch.arange(1.0, members + 1).double()
    expected = common + (weights / weights.sum()) @ change.double()
    for result in results.values():
        assert torch.equal(result, results[0])
        # Two roundings, each of half a unit in the eighth place, of what has changed.
        assert (result - expected).abs().max() < 2 * 2**-8 * change.abs().max()
    assert sum(sent) == 2 * 2 * size * (members - 1)


@pytest.mark.parametrize("precision", [COARSE, Precision.INT8, Precision.INT4])
@pytest.mark.parametrize("strategy", [GossipFixed, GossipRandom, ADPSGD])
def test_exchanges_keep_the_sum_of_their_models(strategy: type, precision: Precision) -> None:
    """Learners that are thrown apart and take no steps: only exchanges move them."""
    data = TensorDataset(torch.randn(480, 50), torch.randn(480, 1))
    began: dict[int, torch.Tensor] = {}
    thrown: dict[int, torch.Tensor] = {}
    ended: dict[int, torch.Tensor] = {}

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(50, 1, bias=False)
        began[0] = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with unisono.Learner(model, optimizer, strategy(every=8, precision=precision)) as learner:
            for x, y in learner.draw(data, 1, 4):
                if learner.number not in thrown:
                    source = torch.Generator().manual_seed(learner.number)
                    thrown[learner.number] = torch.randn(1, 50, generator=source)
                    model.weight.data.add_(thrown[learner.number])
                learner.step(nn.functional.mse_loss(model(x), y))
            rounds = learner.rounds
        assert rounds > 5
        ended[learner.number] = model.weight.detach().clone()

    run_loops(loop, learners=3)
    mean = began[0] + torch.stack(list(thrown.values())).mean(dim=0)
    for weights in ended.values():
        torch.testing.assert_close(weights, mean, rtol=0, atol=2e-6)


def test_what_is_no_float32_travels_as_it_is() -> None:
    doubles = TensorVector(torch.ones(3, dtype=torch.float64))
    assert doubles.encoded(COARSE) is doubles
    assert SizeVector(10).encoded(COARSE).nbytes == 20


def test_it_is_an_option_of_the_strategies_that_can() -> None:
    assert make("averaging", {"precision": "bfloat16"}) == Averaging(precision=COARSE)
    assert make("gossip-random", {"precision": "int4"}) == GossipRandom(precision=Precision.INT4)
    with pytest.raises(UserError, match="it can be float32, bfloat16, int8, int4, 1bit"):
        make("allreduce", {"precision": "float16"})
    assert make("server", {"precision": "int8"}) == Server(precision=Precision.INT8)
    with pytest.raises(UserError, match="precision"):
        make("solo", {"precision": "bfloat16"})
