"""Natural gradients of all layers at once, against those of one layer after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unisono.optim.layer import Estimation, NaturalProduct, Side
from unisono.optim.max_change import BoundedStep, Move, take
from unisono.optim.resident import ResidentNaturalGradient

SHAPES = [(30, 90), (90, 90), (90, 90), (90, 7)]
ROWS = 64
HOST = torch.device("cpu")
ESTIMATION = Estimation(
    rank_in=6, rank_out=12, update_period=4, num_samples_history=400.0, alpha=4.0
)


class Stream:
    """Minibatches of rows whose columns are correlated, and unequal by two decades."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._mixing = [(self._mix(inputs), self._mix(outputs)) for inputs, outputs in SHAPES]

    def minibatch(self, scale: float) -> tuple[list[Tensor], list[Tensor]]:
        inputs = [(self._random(ROWS, len(m)) @ m).relu() for m, _ in self._mixing]
        outputs = [scale / ROWS * self._random(ROWS, len(m)) @ m for _, m in self._mixing]
        return inputs, outputs

    def _mix(self, size: int) -> Tensor:
        return self._random(size, size) / size**0.5 * torch.logspace(0, -2, size)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)


class OneByOne:
    """The estimates that are tested against Kaldi's own figures."""

    def __init__(self) -> None:
        self._product = NaturalProduct(mean=True)
        self._sides = [
            {side: ESTIMATION.begin(ESTIMATION.rank(side, torch.empty(o, i))) for side in Side}
            for i, o in SHAPES
        ]

    def gradients(
        self, inputs: list[Tensor], outputs: list[Tensor]
    ) -> list[tuple[Tensor, Tensor | None]]:
        return [
            self._product(torch.empty(o, i), torch.empty(o), [x], [g], sides)
            for (i, o), x, g, sides in zip(SHAPES, inputs, outputs, self._sides, strict=True)
        ]


def resident(
    dtype: torch.dtype = torch.float32, device: torch.device = HOST
) -> ResidentNaturalGradient:
    return ResidentNaturalGradient(SHAPES, ROWS, ESTIMATION, mean=True, dtype=dtype, device=device)


def copies(rows: list[Tensor], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [r.clone().to(dtype) for r in rows]


def error(found: list[tuple[Tensor, Tensor]], wanted: list[tuple[Tensor, Tensor | None]]) -> float:
    worst = 0.0
    for ours, theirs in zip(found, wanted, strict=True):
        for f, w in zip(ours, theirs, strict=True):
            assert w is not None
            worst = max(worst, float((f - w).norm() / w.norm().clamp(min=1e-30)))
    return worst


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.1)])
def test_gradients_are_those_of_one_layer_after_the_other(
    dtype: torch.dtype, tolerance: float
) -> None:
    stream, alone, ours = Stream(), OneByOne(), resident(dtype)
    updated = 0
    for t in range(30):
        scale = (1.0, 1e3, 0.0)[(t > 14) + (t == 20)]
        inputs, outputs = stream.minibatch(scale)
        wanted = alone.gradients(inputs, outputs)
        if t == 0:
            ours.begin(copies(inputs, dtype), copies(outputs, dtype))
        updating = ours.updates()
        found = ours.gradients(copies(inputs, dtype), copies(outputs, dtype), updating=updating)
        if updating:
            ours.follow()
            updated += 1
        assert error(found, wanted) < tolerance, t
    assert updated == 11 + 4


def test_a_minibatch_that_is_not_finite_teaches_nothing() -> None:
    stream, alone, ours = Stream(), OneByOne(), resident()
    for t in range(4):
        inputs, outputs = stream.minibatch(1.0)
        if t == 0:
            ours.begin(copies(inputs), copies(outputs))
        if t == 2:
            outputs[1][3, 4] = torch.nan
            inputs[3][5, 6] = torch.inf
        wanted = alone.gradients(inputs, outputs)
        found = ours.gradients(copies(inputs), copies(outputs), updating=True)
        ours.follow()
        if t != 2:
            assert error(found, wanted) < 2e-5


def test_a_bounded_step_is_the_step_that_is_taken_otherwise() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [[(5, 3), (5,)], [(2, 5), (2,)]]
    start = [[torch.randn(s, generator=generator) for s in layer] for layer in sizes]
    rates, bounds = [0.1, 0.5], [0.05, 0.0]
    ours = [[p.clone() for p in layer] for layer in start]
    theirs = [[p.clone() for p in layer] for layer in start]
    bounded = BoundedStep(ours, rates, bounds, 0.4)
    for _ in range(3):
        wants = [[torch.randn(s, generator=generator) for s in layer] for layer in sizes]
        assert bool(bounded.take(wants))
        moves = [
            Move(parameters=p, directions=d, rate=r, max_change=m)
            for p, d, r, m in zip(theirs, wants, rates, bounds, strict=True)
        ]
        take(moves, 0.4)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    before = [[p.clone() for p in layer] for layer in ours]
    wants[0][0][0, 0] = torch.inf
    assert not bool(bounded.take(wants))
    for a, b in zip(ours, before, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
