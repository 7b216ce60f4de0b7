"""Natural gradients of all layers at once, against those of one layer after the other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from unisono.errors import UserError
from unisono.optim.fisher import FisherEstimate
from unisono.optim.layer import Estimation, NaturalProduct, Side
from unisono.optim.max_change import BoundedStep, Move, take
from unisono.optim.resident import ResidentNaturalGradient, Shape, product

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


class Ours:
    """All layers with one `ResidentNaturalGradient`."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: torch.device = HOST) -> None:
        self.shapes = [Shape(inputs=i, outputs=o) for i, o in SHAPES]
        self.natural = ResidentNaturalGradient(
            self.shapes, ESTIMATION, mean=True, dtype=dtype, device=device
        )
        self._dtype, self._device = dtype, device
        self.rooms = [
            {side: torch.zeros(ROWS, shape.padded(side)) for side in Side} for shape in self.shapes
        ]
        self.rooms = [{s: r.to(device, dtype) for s, r in room.items()} for room in self.rooms]

    def begin(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        eta = -math.expm1(-ROWS / ESTIMATION.num_samples_history)
        estimates = []
        for (i, o), x, g in zip(SHAPES, inputs, outputs, strict=True):
            weight = torch.empty(o, i)
            rows = {Side.INPUT: functional.pad(x, (0, 1), value=1.0), Side.OUTPUT: g * ROWS}
            estimates.append(
                {
                    side: FisherEstimate.first(rows[side], ESTIMATION.rank(side, weight), eta)
                    for side in Side
                }
            )
        self.natural.load(estimates)

    def fill(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        for room, x, g in zip(self.rooms, inputs, outputs, strict=True):
            room[Side.INPUT][:, : x.shape[1]] = x.to(self._device)
            room[Side.OUTPUT][:, : g.shape[1]] = g.to(self._device)

    def turn(self, updating: bool) -> None:
        for layer, room in enumerate(self.rooms):
            self.natural.turn(layer, room[Side.INPUT], room[Side.OUTPUT], updating=updating)

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        found = []
        for (i, o), room in zip(SHAPES, self.rooms, strict=True):
            whole = product(room[Side.OUTPUT].T, room[Side.INPUT]).cpu()
            found.append((whole[:o, :i], whole[:o, i]))
        return found


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
    stream, alone, ours = Stream(), OneByOne(), Ours(dtype)
    for t in range(30):
        scale = (1.0, 1e3, 0.0)[(t > 14) + (t == 20)]
        inputs, outputs = stream.minibatch(scale)
        wanted = alone.gradients(inputs, outputs)
        if t == 0:
            ours.begin(inputs, outputs)
        updating = t <= 10 or (t - 10) % 4 == 0
        ours.fill(inputs, outputs)
        ours.turn(updating)
        if updating:
            ours.natural.follow()
        assert error(ours.gradients(), wanted) < tolerance, t


def test_a_minibatch_that_is_not_finite_teaches_nothing() -> None:
    stream, alone, ours = Stream(), OneByOne(), Ours()
    for t in range(4):
        inputs, outputs = stream.minibatch(1.0)
        if t == 0:
            ours.begin(inputs, outputs)
        if t == 2:
            outputs[1][3, 4] = torch.nan
            inputs[3][5, 6] = torch.inf
        wanted = alone.gradients(inputs, outputs)
        ours.fill(inputs, outputs)
        ours.turn(True)
        ours.natural.follow()
        if t != 2:
            assert error(ours.gradients(), wanted) < 2e-5


def test_only_layers_that_kept_something_follow() -> None:
    stream, ours, other = Stream(), Ours(), Ours()
    first = stream.minibatch(1.0)
    for each in (ours, other):
        each.begin(*first)
        each.fill(*stream.minibatch(1.0))
    room = ours.rooms[1]
    ours.natural.turn(1, room[Side.INPUT], room[Side.OUTPUT], updating=True)
    for _ in range(2):  # the second has nothing to follow
        ours.natural.follow()
    for layer in range(len(SHAPES)):
        for side in Side:
            before, after = (each.natural.estimate(layer, side) for each in (other, ours))
            same = torch.allclose(before.d, after.d, rtol=1e-9)
            assert same == (layer != 1)
            basis = after.basis.double()
            torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis)).double())


def test_estimates_come_back_as_they_were_loaded() -> None:
    stream, ours = Stream(), Ours()
    ours.begin(*stream.minibatch(1.0))
    loaded = [{side: ours.natural.estimate(n, side) for side in Side} for n in range(len(SHAPES))]
    again = Ours()
    again.natural.load(loaded)
    inputs, outputs = stream.minibatch(1.0)
    for each in (ours, again):
        each.fill(inputs, outputs)
        each.turn(False)
    assert error(again.gradients(), list(ours.gradients())) < 1e-6


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


@pytest.mark.parametrize(
    ("outputs", "alpha", "problem"), [(7, 0.0, "alpha is 0"), (1, 4.0, "a single number")]
)
def test_what_it_cannot_do_is_refused(outputs: int, alpha: float, problem: str) -> None:
    shapes = [Shape(inputs=5, outputs=outputs)]
    with pytest.raises(UserError, match=problem):
        ResidentNaturalGradient(
            shapes,
            replace(ESTIMATION, alpha=alpha),
            mean=True,
            dtype=torch.float32,
            device=HOST,
        )
