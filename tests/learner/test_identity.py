"""One learner is a plain loop, to the last bit, through whichever strategy's own path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import unisono
from support.loops import (
    BATCH,
    DYNAMIC_AVERAGING,
    EXAMPLES,
    STATIC_AVERAGING,
    Ran,
    alone,
    dataset,
    flat,
    loss_of,
    network,
    plain_batches,
    sgd,
    simulated,
    threads,
)
from unisono.fabric.simulated.schedulers import SeededScheduler

STRATEGIES = {
    "solo": "solo",
    "allreduce": "allreduce",
    "static": STATIC_AVERAGING,
    "dynamic": DYNAMIC_AVERAGING,
    "gossip-fixed": unisono.GossipFixed(every=2 * BATCH),
    "gossip-random": unisono.GossipRandom(every=2 * BATCH),
    "adpsgd": unisono.ADPSGD(every=BATCH),
    "delay": "delay-by-one",
    "server": unisono.Server(push=unisono.PushKind.GRADIENT, overlap=False),
    "static-int4": replace(STATIC_AVERAGING, precision=unisono.Precision.INT4),
    "dynamic-int8": replace(DYNAMIC_AVERAGING, precision=unisono.Precision.INT8),
    "allreduce-int4": unisono.AllReduce(precision=unisono.Precision.INT4),
    "delay-int8": unisono.DelayByOne(precision=unisono.Precision.INT8),
    "gossip-random-int4": unisono.GossipRandom(every=2 * BATCH, precision=unisono.Precision.INT4),
    "server-int8": unisono.Server(
        push=unisono.PushKind.GRADIENT, overlap=False, precision=unisono.Precision.INT8
    ),
    "server-1": unisono.Server(push=unisono.PushKind.GRADIENT, overlap=False, shards=1),
}
EPOCHS = 3


@pytest.fixture(scope="module")
def plain() -> torch.Tensor:
    """The parameters after a loop without any of this."""
    model = network(dropout=0.2, norm=True)
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    torch.manual_seed(7)
    for batch in plain_batches(EPOCHS):
        loss_of(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return flat(model)


def learner_loop(strategy: Any, into: dict[str, Any], data: Any = None, **options: Any) -> None:
    model = network(dropout=0.2, norm=True)
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    data = DataLoader(dataset(), BATCH, shuffle=True) if data is None else data
    torch.manual_seed(7)
    with unisono.Learner(model, optimizer, strategy, **options) as learner:
        for batch in learner.draw(data, epochs=EPOCHS):
            learner.backward(loss_of(model, batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    into["end"], into["rounds"] = flat(model), learner.rounds


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    "run", [alone, partial(simulated, learners=1), partial(threads, learners=1)]
)
def test_one_learner_is_a_plain_loop(
    name: str, run: Callable[..., Ran], plain: torch.Tensor
) -> None:
    got: dict[str, Any] = {}
    ran = run(lambda: learner_loop(STRATEGIES[name], got))
    assert torch.equal(got["end"], plain)
    assert (got["rounds"] > 0) == (name != "solo")
    assert ran.counts.committed == ran.counts.leased == 39


@pytest.mark.parametrize("push_every", [1, 4])
@pytest.mark.parametrize("overlap", [False, True])
def test_one_learner_that_pushes_changes_is_a_plain_loop_up_to_rounding(
    overlap: bool, push_every: int, plain: torch.Tensor
) -> None:
    got: dict[str, Any] = {}
    strategy = unisono.Server(push_every=push_every, overlap=overlap)
    simulated(lambda: learner_loop(strategy, got), learners=1)
    torch.testing.assert_close(got["end"], plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_prefetching_changes_nothing(name: str, prefetch: int, plain: torch.Tensor) -> None:
    got: dict[str, Any] = {}
    alone(lambda: learner_loop(STRATEGIES[name], got, prefetch=prefetch))
    assert torch.equal(got["end"], plain)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", ["solo", "dynamic"])
def test_workers_change_nothing(name: str, workers: int, plain: torch.Tensor) -> None:
    loader = DataLoader(dataset(), BATCH, num_workers=workers, shuffle=True)
    got: dict[str, Any] = {}
    alone(lambda: learner_loop(STRATEGIES[name], got, loader))
    assert torch.equal(got["end"], plain)


@pytest.mark.parametrize("name", STRATEGIES)
def test_any_schedule_gives_the_same_bits(name: str, plain: torch.Tensor) -> None:
    for seed in range(5):
        got: dict[str, Any] = {}
        simulated(
            lambda g=got: learner_loop(STRATEGIES[name], g), 1, scheduler=SeededScheduler(seed)
        )
        assert torch.equal(got["end"], plain)


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce",
        STATIC_AVERAGING,
        unisono.Averaging(
            every=16, sharding=unisono.Sharding.STATIC, outer=unisono.BlockMomentum()
        ),
        unisono.Averaging(every=16, sharding=unisono.Sharding.STATIC, outer=unisono.SlowMo()),
        unisono.Averaging(every=16, sharding=unisono.Sharding.STATIC, outer=unisono.Nesterov()),
    ],
    ids=["allreduce", "plain", "block-momentum", "slowmo", "nesterov"],
)
def test_static_runs_repeat(strategy: Any, learners: int) -> None:
    # SlowMo's outer step uses each learner's own rate: they are the same where rounds are whole.
    slow = isinstance(getattr(strategy, "outer", None), unisono.SlowMo)
    examples = 96 if slow else EXAMPLES
    ends = []
    for seed in (None, 0, 1, 2):
        got: dict[int, torch.Tensor] = {}

        def loop(got: dict[int, torch.Tensor] = got) -> None:
            model = network(dropout=0.2, norm=True)
            optimizer = sgd(model)
            with unisono.Learner(model, optimizer, strategy) as learner:
                torch.manual_seed(100 + learner.number)
                for batch in learner.draw(dataset(examples), epochs=2, batch_size=BATCH):
                    optimizer.param_groups[0]["lr"] = 0.1 * 0.1**learner.progress
                    learner.step(loss_of(model, batch))
                got[learner.number] = flat(model)

        schedule = None if seed is None else SeededScheduler(seed)
        simulated(loop, learners, scheduler=schedule, slowness={0: 1.0 + (seed or 0)})
        assert all(torch.equal(got[0], end) for end in got.values())
        ends.append(got[0])
    assert all(torch.equal(ends[0], end) for end in ends)


def test_threads_repeat_what_the_simulation_did() -> None:
    ends = []
    for run in (simulated, threads, threads):
        got: dict[int, torch.Tensor] = {}

        def loop(got: dict[int, torch.Tensor] = got) -> None:
            model = network()
            optimizer = sgd(model)
            with unisono.Learner(model, optimizer, STATIC_AVERAGING) as learner:
                for batch in learner.draw(dataset(), epochs=2, batch_size=BATCH):
                    learner.step(loss_of(model, batch))
            got[learner.number] = flat(model)

        run(loop, 3)
        ends += got.values()
    assert len(ends) == 9
    assert all(torch.equal(ends[0], end) for end in ends)
