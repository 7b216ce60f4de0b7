"""What loops do around ``optimizer.step()``: accumulation, scaling, several optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from support.loops import (
    ALL,
    BATCH,
    SHARING,
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
)
from unisono.learner.placement import find_placement
from unisono.simulation import run_loops

Together = Callable[..., Ran]


# Accumulation.


def accumulating(
    model: nn.Module, strategy: Any, into: dict[int, torch.Tensor], *, of: int, examples: int
) -> None:
    optimizer = sgd(model)
    with unisono.Learner(model, optimizer, strategy) as learner:
        dynamic = learner.draw(dataset(examples), epochs=2, batch_size=BATCH)
        for place, batch in enumerate(dynamic):
            more = (place + 1) % of != 0
            learner.backward(loss_of(model, batch) / of, accumulate=more)
            if not more:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    into[learner.number] = flat(model)


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("of", [2, 3, 5])
def test_accumulation_alone(strategy: str, of: int) -> None:
    """26 minibatches: parts of two end inside accumulations of 3, and a last group is short."""
    plain = network()
    optimizer = sgd(plain)
    for place, batch in enumerate(plain_batches(2)):
        (loss_of(plain, batch) / of).backward()
        if (place + 1) % of == 0:
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    model = network()
    ran = alone(lambda: accumulating(model, ALL[strategy], {}, of=of, examples=104))
    assert torch.equal(flat(model), flat(plain))
    assert (ran.counts.committed, ran.counts.skipped) == (26 - 26 % of, 26 % of)


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize("of", [2, 3])
def test_accumulation_in_company(strategy: str, of: int, together: Together) -> None:
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        accumulating(network(), SHARING[strategy], ends, of=of, examples=96)

    ran = together(loop, 2)
    assert ran.counts.committed + ran.counts.skipped == 24
    assert ran.state.pool.over
    if strategy == "allreduce":
        assert ran.counts.skipped == 0
    if strategy != "dynamic":
        assert torch.equal(ends[0], ends[1])


def test_accumulated_gradients_are_reduced_once() -> None:
    """Two learners, two minibatches each: the steps of one learner with minibatches of 32."""
    plain = network()
    optimizer = sgd(plain)
    for batch in plain_batches(2, batch=4 * BATCH, examples=96):
        loss_of(plain, batch).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    ends: dict[int, torch.Tensor] = {}
    simulated(lambda: accumulating(network(), "allreduce", ends, of=2, examples=96), 2)
    assert torch.equal(ends[0], ends[1])
    assert torch.allclose(ends[0], flat(plain), atol=1e-5)


@pytest.mark.parametrize("strategy", ALL)
def test_several_losses_of_one_minibatch(strategy: str) -> None:
    plain = network()
    optimizer = sgd(plain)
    for x, y in plain_batches():
        loss_of(plain, (x, y)).backward()
        plain(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model = network()

    def loop() -> None:
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, ALL[strategy]) as learner:
            for x, y in learner.draw(dataset(), batch_size=BATCH):
                learner.backward(loss_of(model, (x, y)), accumulate=True)
                learner.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()

    ran = alone(loop)
    assert torch.equal(flat(model), flat(plain))
    assert ran.counts.committed == 13


def test_a_minibatch_counts_once_however_many_losses_it_has() -> None:
    """The weight of a learner in a mean is the examples that it trained."""

    def loop() -> None:
        model = network()
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer, STATIC_AVERAGING) as learner:
            for batch in learner.draw(dataset(96), batch_size=BATCH):
                for _ in range(1 + learner.number):
                    learner.backward(loss_of(model, batch))
                    optimizer.step()
                    optimizer.zero_grad()

    run = run_loops(loop, learners=2)
    rounds = [event for event in run.events if event["event"] == "round"]
    assert len(rounds) == 6 and {event["weight"] for event in rounds} == {2 * BATCH}


def test_a_second_backward_after_the_gradients_were_shared_is_refused() -> None:
    model = network()

    def loop() -> None:
        with unisono.Learner(model, sgd(model), "allreduce") as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.backward(loss_of(model, batch))
                learner.backward(loss_of(model, batch))

    with pytest.raises(unisono.UserError, match="accumulate=True for all but its last"):
        alone(loop)


# Mixed precision.


class Overflowing(nn.Module):
    """A classifier whose gradients are infinite at chosen forwards."""

    def __init__(self, at: set[int]) -> None:
        super().__init__()
        self.net = network()
        self.at = at
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 1e30 if self.forwards in self.at else 1.0
        self.forwards += 1
        y: torch.Tensor = self.net(x)
        return y + (factor - 1.0) * (y - y.detach())


def scaled_loop(
    model: Overflowing, strategy: Any, into: dict[int, Any], *, zero_first: bool, of: int = 1
) -> None:
    """As the recipes in PyTorch's documentation have it."""
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)
    with unisono.Learner(model, optimizer, strategy) as learner:
        dynamic = learner.draw(dataset(96), epochs=2, batch_size=BATCH)
        for place, (x, y) in enumerate(dynamic):
            more = (place + 1) % of != 0
            if zero_first and place % of == 0:
                optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, (x, y)) / of
            learner.backward(scaler.scale(loss), accumulate=more)
            if more:
                continue
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if not zero_first:
                optimizer.zero_grad()
    into[learner.number] = (flat(model), learner.skipped, scaler.get_scale())


def plain_scaled(model: Overflowing, *, of: int = 1) -> torch.Tensor:
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)
    for place, (x, y) in enumerate(plain_batches(2, examples=96)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, (x, y)) / of
        scaler.scale(loss).backward()
        if (place + 1) % of == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return flat(model)


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("of", [1, 2])
def test_grad_scaler_alone(strategy: str, zero_first: bool, of: int) -> None:
    """Skipped among others: the first step, the last of a round, and the last of all."""
    at = {0, 3, 10, 11, 23}
    plain = plain_scaled(Overflowing(at), of=of)
    into: dict[int, Any] = {}
    model = Overflowing(at)
    ran = alone(lambda: scaled_loop(model, ALL[strategy], into, zero_first=zero_first, of=of))
    assert torch.equal(into[0][0], plain)
    skipped = len({place // of for place in at})
    assert ran.counts.skipped == skipped * of
    assert ran.counts.committed == 24 - skipped * of
    # The last one is seen as skipped by its gradients, which zero_grad has not taken yet.
    assert into[0][1] == skipped - (1 if zero_first else 0)


@pytest.mark.parametrize("strategy", SHARING)
@pytest.mark.parametrize("zero_first", [True, False])
def test_grad_scaler_in_company(strategy: str, zero_first: bool, together: Together) -> None:
    """One learner overflows; where gradients are shared all skip that step, else it alone."""
    into: dict[int, Any] = {}
    at = {1, 3, 7, 11}
    models = {0: Overflowing(set()), 1: Overflowing(at)}

    def loop() -> None:
        model = models[find_placement().number]
        scaled_loop(model, SHARING[strategy], into, zero_first=zero_first)

    ran = together(loop, 2)
    assert ran.state.pool.over
    assert ran.counts.committed + ran.counts.skipped == 24
    overflows = len(at & set(range(models[1].forwards)))
    assert ran.counts.skipped == overflows * (2 if strategy == "allreduce" else 1)
    assert all(end.isfinite().all() for end, _, _ in into.values())
    if strategy == "allreduce":
        assert torch.equal(into[0][0], into[1][0])
        assert into[0][2] == into[1][2]
    elif strategy == "static":
        assert torch.equal(into[0][0], into[1][0])


def test_the_parking_rule_holds_in_company(together: Together) -> None:
    for place in ("autocast", "no_grad"):

        def loop(place: str = place) -> None:
            model = network()
            with unisono.Learner(model, sgd(model), STATIC_AVERAGING) as learner:
                for batch in learner.draw(dataset(), batch_size=BATCH):
                    loss = loss_of(model, batch)
                    mode = (
                        torch.autocast("cpu", dtype=torch.bfloat16)
                        if place == "autocast"
                        else torch.no_grad()
                    )
                    with mode:
                        learner.backward(loss)

        ran = together(loop, 2, check=False)
        assert any("BlockingCallError" in repr(error) for error in ran.errors.values())
        with pytest.raises(
            RuntimeError, match=f"inside {'autocast' if place[0] == 'a' else 'torch'}"
        ):
            ran.raise_first()


# Several groups, several optimizers.


@pytest.mark.parametrize("strategy", ALL)
def test_parameter_groups(strategy: str) -> None:
    def made(model: nn.Sequential) -> torch.optim.Optimizer:
        groups = [
            {"params": model[0].parameters(), "lr": 0.2},
            {"params": model[2].parameters(), "weight_decay": 0.1},
        ]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)

    plain = network()
    optimizer = made(plain)
    for batch in plain_batches(2):
        loss_of(plain, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = network()

    def loop() -> None:
        optimizer = made(model)
        with unisono.Learner(model, optimizer, ALL[strategy]) as learner:
            for batch in learner.draw(dataset(), epochs=2, batch_size=BATCH):
                learner.step(loss_of(model, batch))

    alone(loop)
    assert torch.equal(flat(model), flat(plain))


def two(model: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(model[2].parameters(), lr=0.01),
    ]


def does_step(which: int, place: int, lazy: int) -> bool:
    """The second one rests at every ``lazy``-th minibatch."""
    return which == 0 or (place + 1) % lazy != 0


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("lazy", [1000, 2, 3])
def test_several_optimizers(strategy: str, lazy: int, together: Together) -> None:
    plain = network()
    for_plain = two(plain)
    for place, batch in enumerate(plain_batches(2)):
        loss_of(plain, batch).backward()
        for which, optimizer in enumerate(for_plain):
            if does_step(which, place, lazy):
                optimizer.step()
        for optimizer in for_plain:
            optimizer.zero_grad()
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network()
        optimizers = two(model)
        with unisono.Learner(model, optimizers, ALL[strategy]) as learner:
            dynamic = learner.draw(dataset(), epochs=2, batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                learner.backward(loss_of(model, batch))
                for which, optimizer in enumerate(optimizers):
                    if does_step(which, place, lazy):
                        optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
        ends[learner.number] = flat(model)

    ran = alone(loop)
    assert torch.equal(ends.pop(0), flat(plain))
    assert ran.counts.committed == 26
    if strategy == "solo":
        return
    ran = together(loop, 2)
    assert ran.counts.committed == 26
    assert strategy == "dynamic" or torch.equal(ends[0], ends[1])


@pytest.mark.parametrize("sequence", [(0, 1), (0, 1, 0), (0, 0, 1)])
def test_alternating_optimizers(sequence: tuple[int, ...], together: Together) -> None:
    """Each has its own loss and its own step, one after the other, on the same minibatch."""
    ends: dict[int, torch.Tensor] = {}

    def loop() -> None:
        model = network()
        optimizers = two(model)
        with unisono.Learner(model, optimizers, STATIC_AVERAGING) as learner:
            for x, y in learner.draw(dataset(96), batch_size=BATCH):
                for which in sequence:
                    learner.backward(loss_of(model, (x, y)))
                    optimizers[which].step()
                    model.zero_grad()
            with learner.consensus():
                ends[learner.number] = flat(model)

    ran = together(loop, 2)
    assert ran.counts.committed == 12
    assert torch.equal(ends[0], ends[1])


def test_alternating_optimizers_are_guarded_each() -> None:
    model = network()

    def loop() -> None:
        first, second = two(model)
        with unisono.Learner(model, [first, second]) as learner:
            for x, y in learner.draw(dataset(96), batch_size=BATCH):
                learner.backward(loss_of(model, (x, y)))
                first.step()
                model.zero_grad()
                learner.backward(loss_of(model, (x, y)) * float("nan"))
                second.step()
                model.zero_grad()
                assert learner.skipped > 0

    ran = alone(loop)
    assert flat(model).isfinite().all()
    assert ran.counts.committed == 12


def test_a_closure_is_refused() -> None:
    model = network()

    def loop() -> None:
        optimizer = torch.optim.LBFGS(model.parameters())
        with unisono.Learner(model, optimizer) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                learner.backward(loss_of(model, batch))
                optimizer.step(lambda batch=batch: loss_of(model, batch))

    with pytest.raises(unisono.UserError, match=r"step\(closure\) is not supported"):
        alone(loop)


def test_sparse_gradients_are_refused() -> None:
    for strategy in ALL.values():
        table = nn.Embedding(10, 3, sparse=True)

        def loop(strategy: Any = strategy, table: nn.Embedding = table) -> None:
            optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
            with unisono.Learner(table, optimizer, strategy) as learner:
                for _, y in learner.draw(dataset(), batch_size=BATCH):
                    learner.step(table(y).sum())

        with pytest.raises(unisono.UserError, match="sparse=False"):
            alone(loop)


def test_a_step_needs_the_learners_backward() -> None:
    model = network()

    def loop() -> None:
        optimizer = sgd(model)
        with unisono.Learner(model, optimizer) as learner:
            for batch in learner.draw(dataset(), batch_size=BATCH):
                loss_of(model, batch).backward()
                optimizer.step()

    with pytest.raises(unisono.UserError, match=r"learner\.backward"):
        alone(loop)


@pytest.mark.parametrize("strategy", ["solo", "static", "dynamic"])
def test_a_minibatch_may_be_passed_over(strategy: str, together: Together) -> None:
    """As by a user who does not like what is in it: it counts as skipped, and nobody waits."""

    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), ALL[strategy]) as learner:
            dynamic = learner.draw(dataset(96), batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                if place % 2 == 1:
                    continue
                learner.step(loss_of(model, batch))

    ran = alone(loop)
    assert (ran.counts.committed, ran.counts.skipped) == (6, 6)
    if strategy != "solo":
        ran = together(loop, 2)
        assert ran.counts.committed + ran.counts.skipped == 12
        assert ran.counts.skipped >= 5


def test_passing_over_is_refused_where_all_wait_for_each_step(together: Together) -> None:
    def loop() -> None:
        model = network()
        with unisono.Learner(model, sgd(model), "allreduce") as learner:
            dynamic = learner.draw(dataset(96), batch_size=BATCH)
            for place, batch in enumerate(dynamic):
                if place == 2 and learner.number == 1:
                    continue
                learner.step(loss_of(model, batch))

    with pytest.raises(unisono.UserError, match="there was no backward"):
        together(loop, 2)
