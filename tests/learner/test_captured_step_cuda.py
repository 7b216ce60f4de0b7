"""Captured steps on a GPU do what steps do there."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch

from support.captured_loops import OPTIMIZERS, Loop, Reads, check_same, natural, train
from support.loops import ALL, DYNAMIC, SHARING, alone, simulated
from unisono.learner import captured_step
from unisono.learner.cuda_graphs import CudaGraphs, Work

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
EVERY = {**OPTIMIZERS, "ng-sgd": natural}


class Counting(CudaGraphs):
    """Counts captures."""

    captures = 0

    def capture(self, work: Work) -> Work:
        replay = super().capture(work)
        type(self).captures += 1
        return replay


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    counting = type("Fresh", (Counting,), {})
    monkeypatch.setattr(captured_step, "CudaGraphs", counting)
    return counting


def both(count: int, strategy: Any, **options: Any) -> dict[bool, dict[int, torch.Tensor]]:
    """What learners end with, without and with captured steps."""
    ends: dict[bool, dict[int, torch.Tensor]] = {False: {}, True: {}}
    for captured in ends:
        loop = train(strategy, captured=captured, ends=ends[captured], device="cuda", **options)
        ran = alone(loop) if count == 1 else simulated(loop, count)
        assert ran.counts.committed + ran.counts.skipped == 39
    return ends


@pytest.mark.parametrize("optimizer", EVERY)
@pytest.mark.parametrize("strategy", ALL)
def test_one_learner_computes_the_same(
    strategy: str, optimizer: str, graphs: type[Counting]
) -> None:
    ends = both(1, ALL[strategy], optimizer_of=EVERY[optimizer])
    assert graphs.captures == (4 if optimizer == "ng-sgd" else 2)
    assert torch.allclose(ends[True][0], ends[False][0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("strategy", SHARING)
def test_several_learners_compute_the_same(strategy: str, graphs: type[Counting]) -> None:
    ends = both(3, SHARING[strategy])
    assert graphs.captures == 6
    if strategy not in DYNAMIC:
        assert torch.allclose(ends[True][0], ends[False][0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("optimizer", EVERY)
def test_steps_that_are_not_finite_are_not_taken(optimizer: str) -> None:
    def spoil(place: int) -> float:
        return {7: math.inf, 20: math.nan}.get(place, 1.0)

    ends = both(1, "averaging", optimizer_of=EVERY[optimizer], spoil=spoil)
    assert ends[True][100] == 2
    assert ends[True][0].isfinite().all()


def test_dropout_is_drawn_anew_in_each_replay() -> None:
    model_ends = [both(1, "solo", dropout=0.5)[True][0] for _ in range(2)]
    assert torch.allclose(*model_ends, rtol=0, atol=1e-4)
    assert not torch.allclose(model_ends[0], both(1, "solo")[True][0], rtol=0, atol=1e-3)


@pytest.mark.parametrize("batch", [8, 20])
def test_short_last_minibatches_are_shapes_of_their_own(batch: int) -> None:
    check_same(Loop, tolerance=1e-4, batch=batch, device="cuda")


class Litters(Loop):
    """While it is captured, it leaves a graph behind that the garbage collector would destroy."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            gc.set_threshold(1)
            litter: list[Any] = [SPARE.pop()]
            litter.append(litter)
        return super().loss(x, y)


SPARE: list[torch.cuda.CUDAGraph] = []


def test_no_graph_is_destroyed_during_a_capture(graphs: type[Counting]) -> None:
    SPARE.append(torch.cuda.CUDAGraph())
    with torch.cuda.graph(SPARE[0]):
        torch.zeros(1, device="cuda")
    thresholds = gc.get_threshold()
    try:
        check_same(Litters, tolerance=1e-4, device="cuda")
    finally:
        gc.set_threshold(*thresholds)
    assert graphs.captures == 2 and not SPARE


def test_what_cannot_be_captured_is_trained_without(graphs: type[Counting]) -> None:
    with pytest.warns(UserWarning, match="not captured as CUDA graphs"):
        check_same(Reads, tolerance=1e-4, device="cuda")
    assert graphs.captures == 0
    assert torch.rand(3, device="cuda").isfinite().all()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    check_same(Loop, tolerance=1e-4, device="cuda")
    assert graphs.captures == 2
