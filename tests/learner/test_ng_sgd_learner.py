"""Natural gradient in a learner: one is a bare loop, several agree, a resumed one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from support.loops import (
    BATCH,
    DYNAMIC_AVERAGING,
    STATIC_AVERAGING,
    alone,
    dataset,
    flat,
    loss_of,
    network,
    plain_batches,
    simulated,
)
from unisono.optim import NaturalGradientSGD

EPOCHS = 3
STRATEGIES = {
    "solo": "solo",
    "allreduce": "allreduce",
    "static": STATIC_AVERAGING,
    "dynamic": DYNAMIC_AVERAGING,
    "server": unisono.Server(push_every=2),
    "server-gradient": unisono.Server(push=unisono.PushKind.GRADIENT),
}
PLAIN = [name for name in STRATEGIES if "server" not in name]


class StopError(Exception):
    """What a user's loop may raise."""


def ng_sgd(model: torch.nn.Module, momentum: float = 0.9) -> NaturalGradientSGD:
    return NaturalGradientSGD(model, 0.1, momentum=momentum)


@pytest.fixture(scope="module")
def plain() -> torch.Tensor:
    """The parameters after a loop without any of this."""
    model = network(dropout=0.2, norm=True)
    optimizer = ng_sgd(model)
    torch.manual_seed(7)
    for batch in plain_batches(EPOCHS):
        loss_of(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return flat(model)


@pytest.mark.parametrize("name", PLAIN)
def test_one_learner_is_a_plain_loop(name: str, plain: torch.Tensor) -> None:
    got: dict[str, Any] = {}

    def loop() -> None:
        model = network(dropout=0.2, norm=True)
        optimizer = ng_sgd(model)
        torch.manual_seed(7)
        with unisono.Learner(model, optimizer, STRATEGIES[name]) as learner:
            for batch in learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH):
                learner.backward(loss_of(model, batch))
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        got["end"] = flat(model)

    alone(loop)
    assert torch.equal(got["end"], plain)


@pytest.mark.parametrize("shards", [1, 3])
def test_shards_take_plain_steps_with_natural_gradients(shards: int) -> None:
    """One learner that waits is a bare loop with ng-sgd, momentum and decay, without bounds."""

    def unbounded(model: torch.nn.Module) -> NaturalGradientSGD:
        return NaturalGradientSGD(
            model, 0.1, momentum=0.5, weight_decay=0.01, max_change=0.0, max_change_total=0.0
        )

    bare = network()
    optimizer = unbounded(bare)
    for batch in plain_batches(EPOCHS):
        loss_of(bare, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    got: dict[str, torch.Tensor] = {}

    def loop() -> None:
        model = network()
        strategy = unisono.Server(push=unisono.PushKind.GRADIENT, overlap=False, shards=shards)
        with unisono.Learner(model, unbounded(model), strategy) as learner:
            for batch in learner.draw(dataset(), epochs=EPOCHS, batch_size=BATCH):
                learner.step(loss_of(model, batch))
        got["end"] = flat(model)

    alone(loop)
    torch.testing.assert_close(got["end"], flat(bare), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(got["end"], flat(network()), atol=0.05)


@pytest.mark.parametrize("name", ["allreduce", "static", "dynamic", "server", "server-gradient"])
def test_three_learners_learn(name: str) -> None:
    ends: dict[int, torch.Tensor] = {}
    losses: dict[int, float] = {}

    def loop() -> None:
        model = network()
        optimizer = ng_sgd(model, 0.0 if name == "server-gradient" else 0.9)
        with unisono.Learner(model, optimizer, STRATEGIES[name]) as learner:
            for batch in learner.draw(dataset(), epochs=8, batch_size=BATCH):
                learner.step(loss_of(model, batch))
            with learner.consensus(), torch.no_grad():
                ends[learner.number] = flat(model)
                losses[learner.number] = float(loss_of(model, dataset().tensors))

    simulated(loop, 3)
    assert len(ends) == 3
    assert all(torch.equal(end, ends[0]) for end in ends.values())
    assert losses[0] < 0.5 * loss_of(network(), dataset().tensors).item()


def test_allreduce_steps_with_the_mean_of_the_natural_gradients() -> None:
    seen: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    own: dict[int, list[torch.Tensor]] = {0: [], 1: []}

    def gradient(model: torch.nn.Module) -> torch.Tensor:
        return torch.cat([p.grad.flatten().clone() for p in model.parameters()])

    def loop() -> None:
        model, twin = network(), network()
        optimizer, apart = ng_sgd(model), ng_sgd(twin)
        with unisono.Learner(model, optimizer, "allreduce") as learner:
            for batch in learner.draw(dataset(96), epochs=1, batch_size=BATCH):
                twin.load_state_dict(model.state_dict())
                apart.zero_grad()
                loss_of(twin, batch).backward()
                own[learner.number].append(gradient(twin))
                learner.backward(loss_of(model, batch))
                seen[learner.number].append(gradient(model))
                optimizer.step()
                optimizer.zero_grad()

    simulated(loop, 2)
    assert len(seen[0]) == len(seen[1]) == 6
    for mean, other, *each in zip(seen[0], seen[1], own[0], own[1], strict=True):
        assert torch.equal(mean, other)
        assert torch.allclose(mean, (each[0] + each[1]) / 2, atol=1e-7)


@pytest.mark.parametrize("restart", [False, True])
def test_estimates_are_kept_from_round_to_round_or_restarted(restart: bool) -> None:
    calls: list[int] = []

    def loop() -> None:
        model = network()
        optimizer = ng_sgd(model)
        strategy = unisono.Averaging(
            every=2 * BATCH, sharding=unisono.Sharding.STATIC, restart_optimizer=restart
        )
        with unisono.Learner(model, optimizer, strategy) as learner:
            for batch in learner.draw(dataset(96), epochs=1, batch_size=BATCH):
                learner.backward(loss_of(model, batch))
                if learner.number == 0:
                    calls.append(optimizer.state_dict()["fisher"][0]["input"]["t"])
                optimizer.step()
                optimizer.zero_grad()

    simulated(loop, 2)
    assert calls == ([1, 2, 1, 2, 1, 2] if restart else [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(("name", "learners"), [("solo", 1), ("allreduce", 2), ("static", 2)])
def test_a_resumed_run_ends_with_the_same_bytes(name: str, learners: int, tmp_path: Path) -> None:
    ends: dict[str, torch.Tensor] = {}

    def loop(directory: Path, stop_after: int, resume: bool) -> None:
        model = network()
        optimizer = ng_sgd(model)
        with unisono.Learner(
            model,
            optimizer,
            STRATEGIES[name],
            checkpoints=directory,
            checkpoint_every=4 * learners * BATCH,
            resume=resume,
        ) as learner:
            dynamic = learner.draw(dataset(96), epochs=2, batch_size=BATCH)
            for taken, batch in enumerate(dynamic, start=1):
                learner.step(loss_of(model, batch))
                if taken == stop_after and learner.number == 0:
                    raise StopError
            ends[directory.name] = flat(model)

    simulated(lambda: loop(tmp_path / "whole", 0, False), learners)
    with pytest.raises(StopError):
        simulated(lambda: loop(tmp_path / "broken", 10, False), learners)
    assert "broken" not in ends
    simulated(lambda: loop(tmp_path / "broken", 0, True), learners)
    assert torch.equal(ends["whole"], ends["broken"])


def test_accumulation_and_a_scaler_in_a_learner() -> None:
    ran: dict[str, Any] = {}

    def loop() -> None:
        model = network()
        optimizer = ng_sgd(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        with unisono.Learner(model, optimizer, "averaging") as learner:
            for number, batch in enumerate(learner.draw(dataset(), epochs=2, batch_size=BATCH)):
                last = number % 2 == 1
                learner.backward(scaler.scale(loss_of(model, batch) / 2), accumulate=not last)
                if last:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            ran["skipped"] = learner.skipped
        with torch.no_grad():
            ran["loss"] = float(loss_of(model, dataset().tensors))

    alone(loop)
    assert ran["skipped"] == 0
    assert ran["loss"] < 0.7 * loss_of(network(), dataset().tensors).item()
