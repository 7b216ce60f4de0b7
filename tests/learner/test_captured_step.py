"""Captured steps do what steps do, in every strategy; graphs are recorded on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import unisono
from support.captured_loops import (
    OPTIMIZERS,
    Loop,
    Reads,
    check_same,
    natural,
    train,
)
from support.loops import ALL, DYNAMIC, SHARING, Ran, alone, simulated
from support.recorded_graphs import RecordedGraphs
from unisono.learner import captured_step
from unisono.learner.captured_step import CAPTURE_AFTER
from unisono.learner.cuda_graphs import Work
from unisono.optim import ng_sgd

Together = Callable[..., Ran]


class Counting(RecordedGraphs):
    """Counts captures and replays."""

    captures = replays = 0

    def capture(self, work: Work) -> Work:
        replay = super().capture(work)
        type(self).captures += 1

        def counted() -> None:
            type(self).replays += 1
            replay()

        return counted


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    counting = type("Fresh", (Counting,), {})
    monkeypatch.setattr(captured_step, "CudaGraphs", counting)
    return counting


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ALL)
def test_one_learner_computes_the_same(
    strategy: str, optimizer: str, graphs: type[Counting]
) -> None:
    ends: dict[bool, dict[int, torch.Tensor]] = {False: {}, True: {}}
    for captured in ends:
        make = OPTIMIZERS[optimizer]
        ran = alone(train(ALL[strategy], make, captured=captured, ends=ends[captured]))
        assert ran.counts.committed == 39
    assert graphs.captures == 2
    assert graphs.replays == 2 * (39 - CAPTURE_AFTER)
    assert torch.allclose(ends[True][0], ends[False][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("strategy", SHARING)
def test_several_learners_compute_the_same(strategy: str, graphs: type[Counting]) -> None:
    ends: dict[bool, dict[int, torch.Tensor]] = {False: {}, True: {}}
    for captured in ends:
        ran = simulated(train(SHARING[strategy], captured=captured, ends=ends[captured]), 3)
        assert ran.counts.committed == 39
    assert graphs.captures == 6
    if strategy not in DYNAMIC:
        assert torch.allclose(ends[True][0], ends[False][0], rtol=0, atol=1e-6)
    assert all(torch.allclose(ends[True][n], ends[True][0], atol=0.2) for n in range(3))


@pytest.mark.parametrize("push", ["gradient", "change"])
def test_servers_are_pushed_the_same(push: str) -> None:
    ends: dict[bool, dict[int, torch.Tensor]] = {False: {}, True: {}}
    for captured in ends:
        strategy = unisono.Server(push=push, overlap=False)
        ran = alone(train(strategy, captured=captured, ends=ends[captured]))
        assert ran.counts.committed == 39
    assert torch.allclose(ends[True][0], ends[False][0], rtol=0, atol=1e-6)


def test_dropout_is_drawn_anew_in_each_replay() -> None:
    ends: dict[bool, dict[int, torch.Tensor]] = {False: {}, True: {}}
    for captured in ends:
        alone(train("solo", captured=captured, ends=ends[captured], dropout=0.5))
    assert torch.allclose(ends[True][0], ends[False][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_that_are_not_finite_are_not_taken(strategy: str, optimizer: str) -> None:
    ends: dict[bool, dict[int, torch.Tensor]] = {False: {}, True: {}}

    def spoil(place: int) -> float:
        return {7: math.inf, 20: math.nan}.get(place, 1.0)

    for captured in ends:
        make = OPTIMIZERS[optimizer]
        options = {"captured": captured, "ends": ends[captured], "spoil": spoil}
        alone(train(ALL[strategy], make, **options))
    assert ends[True][100] == ends[False][100] == 2
    assert torch.allclose(ends[True][0], ends[False][0], rtol=0, atol=1e-6)


def test_a_learner_that_diverges_ends() -> None:
    def spoil(place: int) -> float:
        return math.nan if place > 3 else 1.0

    ran = alone(train("averaging", captured=True, ends={}, spoil=spoil), check=False)
    assert "steps were not finite" in str(ran.errors[0])


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Natural gradient as on a GPU."""
    monkeypatch.setattr(ng_sgd, "_is_batched", lambda device: True)


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize("strategy", ["solo", "static", "gossip"])
def test_natural_gradients_are_the_same(strategy: str, graphs: type[Counting]) -> None:
    ends: dict[bool, dict[int, torch.Tensor]] = {False: {}, True: {}}

    for captured in ends:
        alone(train(ALL[strategy], natural, captured=captured, ends=ends[captured]))
    assert graphs.captures == 4  # with and without an update of the estimates
    assert graphs.replays == 2 * (39 - CAPTURE_AFTER)
    assert torch.allclose(ends[True][0], ends[False][0], rtol=0, atol=1e-5)


@pytest.mark.usefixtures("batched")
@pytest.mark.parametrize("strategy", ["solo", "static"])
def test_natural_gradient_takes_no_step_that_is_not_finite(strategy: str) -> None:
    def spoil(place: int) -> float:
        return {7: math.inf, 20: math.nan, 21: math.nan}.get(place, 1.0)

    ends: dict[int, torch.Tensor] = {}
    alone(train(ALL[strategy], natural, captured=True, ends=ends, spoil=spoil))
    assert ends[100] == 3
    assert ends[0].isfinite().all()


@pytest.mark.usefixtures("batched")
def test_the_state_of_natural_gradient_counts_replays() -> None:
    states: dict[bool, Any] = {}
    for captured in (False, True):
        loop = Loop(captured)
        loop.optimizer = natural(loop.model)
        loop.run()
        states[captured] = loop.optimizer.state_dict()["fisher"]
    for index, sides in states[False].items():
        for side, values in sides.items():
            assert states[True][index][side]["t"] == values["t"] == 39
            assert torch.allclose(states[True][index][side]["d"], values["d"], atol=1e-5)


def test_natural_gradient_on_a_cpu_is_not_captured(graphs: type[Counting]) -> None:
    ends: dict[int, torch.Tensor] = {}
    alone(train("solo", natural, captured=True, ends=ends))
    assert graphs.captures == 0


@pytest.mark.parametrize("batch", [8, 20, 60])
def test_short_last_minibatches_are_shapes_of_their_own(batch: int) -> None:
    check_same(Loop, batch=batch)


class NewSettings(Loop):
    def at(self, place: int) -> None:
        if place == 12:
            self.optimizer.param_groups[0]["weight_decay"] = 0.1
        if place == 20:
            self.optimizer.load_state_dict(self.optimizer.state_dict())
        if place == 26:
            self.model.double().float()


def test_what_the_host_changes_is_captured_anew(graphs: type[Counting]) -> None:
    check_same(NewSettings)
    assert graphs.captures == 8


def test_what_cannot_be_captured_is_trained_without(graphs: type[Counting]) -> None:
    with pytest.warns(UserWarning, match="not captured as CUDA graphs.*not permitted"):
        check_same(Reads)
    assert graphs.replays == 0
