"""Outer steps against their formulas in plain numpy, and against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unisono.errors import UserError
from unisono.fabric import TensorVector
from unisono.strategies import Averaging, BlockMomentum, Nesterov, Plain, SlowMo
from unisono.strategies.outer_steps import Outer, OuterState

Numbers = NDArray[np.float64]
Step = Callable[[Numbers, Numbers], Numbers]
MEMBERS = 4
RATE = 0.05
START = np.array([1.0, -2.0, 0.5])


def vector(numbers: Numbers) -> TensorVector:
    return TensorVector(torch.tensor(numbers, dtype=torch.float64))


def numbers(vector: TensorVector) -> Numbers:
    return vector.tensor.numpy().copy()


def walk(
    outer: Outer, means: list[Callable[[Numbers], Numbers]], rate: float = RATE
) -> list[Numbers]:
    """Where rounds start, if each round's mean is a function of where it started."""
    start = vector(START)
    state = outer.begin(start)
    starts = [numbers(start)]
    for mean in means:
        state.advance(start, vector(mean(numbers(start))), rate, MEMBERS)
        starts.append(numbers(start))
    return starts


def random_means(count: int) -> list[Callable[[Numbers], Numbers]]:
    source = np.random.default_rng(0)
    moves = source.normal(size=(count, 3))
    return [lambda s, move=move: s + move for move in moves]  # type: ignore[misc]


def expect(step: Step, means: list[Callable[[Numbers], Numbers]]) -> list[Numbers]:
    starts = [START]
    for mean in means:
        starts.append(step(starts[-1], mean(starts[-1])))
    return starts


def block_momentum(momentum: float, rate: float, nesterov: bool) -> Step:
    delta, model = np.zeros(3), START.copy()

    def step(start: Numbers, mean: Numbers) -> Numbers:
        nonlocal delta, model
        delta = momentum * delta + rate * (mean - start)
        model = model + delta
        return model + momentum * delta if nesterov else model

    return step


def slowmo(momentum: float, rate: float) -> Step:
    slow = np.zeros(3)

    def step(start: Numbers, mean: Numbers) -> Numbers:
        nonlocal slow
        slow = momentum * slow + (start - mean) / RATE
        return start - rate * RATE * slow

    return step


def nesterov(momentum: float, rate: float) -> Step:
    speed = np.zeros(3)

    def step(start: Numbers, mean: Numbers) -> Numbers:
        nonlocal speed
        gradient = start - mean
        speed = momentum * speed + gradient
        return start - rate * (gradient + momentum * speed)

    return step


@pytest.mark.parametrize(
    ("outer", "formula"),
    [
        (Plain(), lambda: lambda start, mean: mean),
        (BlockMomentum(), partial(block_momentum, 1 - 1 / MEMBERS, 1.0, nesterov=False)),
        (BlockMomentum(momentum=0.3, rate=0.8), partial(block_momentum, 0.3, 0.8, nesterov=False)),
        (
            BlockMomentum(momentum=0.3, nesterov=True),
            partial(block_momentum, 0.3, 1.0, nesterov=True),
        ),
        (SlowMo(), partial(slowmo, 0.5, 1.0)),
        (SlowMo(momentum=0.2, rate=0.7), partial(slowmo, 0.2, 0.7)),
        (Nesterov(), partial(nesterov, 0.5, 1.0)),
    ],
)
def test_each_follows_its_formula(outer: Outer, formula: Callable[[], Step]) -> None:
    means = random_means(8)
    expected = expect(formula(), means)
    np.testing.assert_allclose(walk(outer, means), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "outer",
    [BlockMomentum(momentum=0.0), SlowMo(momentum=0.0), Nesterov(momentum=0.0, rate=1.0)],
    ids=repr,
)
def test_without_momentum_all_are_plain(outer: Outer) -> None:
    means = random_means(8)
    np.testing.assert_allclose(walk(outer, means), walk(Plain(), means), rtol=1e-12, atol=1e-12)


def steady(count: int, u: Numbers) -> list[Callable[[Numbers], Numbers]]:
    return [lambda start: start + u] * count


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.75, 0.9])
def test_the_gain_of_block_momentum_on_a_steady_update(momentum: float) -> None:
    """The learners' mean moves by u each round: the model moves by u / (1 - momentum)."""
    u = np.array([0.1, -0.2, 0.3])
    starts = walk(BlockMomentum(momentum=momentum), steady(300, u))
    np.testing.assert_allclose(starts[-1] - starts[-2], u / (1 - momentum), rtol=1e-9)


def test_the_default_momentum_adds_up_what_all_learners_did() -> None:
    u = np.array([0.1, -0.2, 0.3])
    starts = walk(BlockMomentum(), steady(300, u))
    np.testing.assert_allclose(starts[-1] - starts[-2], MEMBERS * u, rtol=1e-9)


@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_the_gain_of_nesterov_on_a_steady_update(rate: float) -> None:
    """On a steady g: m = g / (1 - mu), and a round moves by rate (g + mu m) = rate g / (1 - mu)."""
    u = np.array([0.1, -0.2, 0.3])
    starts = walk(Nesterov(momentum=0.8, rate=rate), steady(300, u))
    np.testing.assert_allclose(starts[-1] - starts[-2], rate * u / (1 - 0.8), rtol=1e-9)


def test_nesterov_looks_ahead() -> None:
    """The first round moves by rate (1 + momentum): one step, and the momentum of the next."""
    u = np.array([0.1, -0.2, 0.3])
    starts = walk(Nesterov(momentum=0.9, rate=0.7), steady(1, u))
    np.testing.assert_allclose(starts[1] - starts[0], 0.7 * 1.9 * u, rtol=1e-12)


def test_block_momentum_looks_ahead_and_hands_out_the_model_behind() -> None:
    u = np.array([0.1, -0.2, 0.3])
    start = vector(START)
    state = BlockMomentum(momentum=0.5, nesterov=True).begin(start)
    state.advance(start, vector(START + u), RATE, MEMBERS)
    handed_out = state.consensus(start)
    assert isinstance(handed_out, TensorVector)
    np.testing.assert_allclose(numbers(handed_out), START + u, rtol=1e-12)
    np.testing.assert_allclose(numbers(start), START + 1.5 * u, rtol=1e-12)


def test_slowmo_at_a_constant_rate_is_block_momentum() -> None:
    means = random_means(10)
    slow = walk(SlowMo(momentum=0.6, rate=0.8), means)
    block = walk(BlockMomentum(momentum=0.6, rate=0.8), means)
    np.testing.assert_allclose(slow, block, rtol=1e-12, atol=1e-12)


def test_slowmo_at_rate_zero_averages_plainly_and_keeps_its_memory() -> None:
    start = vector(START)
    state = SlowMo(momentum=0.5).begin(start)
    state.advance(start, vector(START + 1.0), 0.1, MEMBERS)
    memory = {name: numbers(v) for name, v in vectors(state).items()}
    mean = np.array([3.0, 4.0, 5.0])
    state.advance(start, vector(mean), 0.0, MEMBERS)
    assert np.array_equal(numbers(start), mean)
    assert all(np.array_equal(numbers(v), memory[n]) for n, v in vectors(state).items())


def vectors(state: OuterState) -> dict[str, TensorVector]:
    found = {}
    for name, v in state.vectors.items():
        assert isinstance(v, TensorVector)
        found[name] = v
    return found


@pytest.mark.parametrize(
    "outer", [Plain(), BlockMomentum(nesterov=True), SlowMo(), Nesterov()], ids=repr
)
def test_an_outer_step_goes_on_from_its_vectors(outer: Outer) -> None:
    """All memory is in ``vectors``: another one with the same vectors makes the same steps."""
    means = random_means(6)
    start = vector(START)
    state = outer.begin(start)
    for mean in means[:3]:
        state.advance(start, vector(mean(numbers(start))), RATE, MEMBERS)
    other_start = vector(numbers(start))
    other = outer.begin(vector(np.zeros(3)))
    for name, v in vectors(other).items():
        v.assign(vectors(state)[name])
    for mean in means[3:]:
        for s, o in ((start, state), (other_start, other)):
            o.advance(s, vector(mean(numbers(s))), RATE, MEMBERS)
    assert np.array_equal(numbers(start), numbers(other_start))


@pytest.mark.parametrize("members", [1, 2, 8])
@pytest.mark.parametrize(
    "outer",
    [Plain(), BlockMomentum(), BlockMomentum(nesterov=True), SlowMo(), Nesterov()],
)
def test_on_a_steady_gradient_n_learners_move_as_far_as_n_rounds_of_one(
    outer: Outer, members: int
) -> None:
    step = np.array([0.5, -1.0, 0.25])  # of one learner in a round, at the rate of one
    factor = Averaging(outer=outer).rate_factor(members)
    start = vector(START)
    state = outer.begin(start)
    for _ in range(400):
        before = numbers(start)
        state.advance(start, vector(before + factor * step), RATE * factor, members)
    np.testing.assert_allclose(numbers(start) - before, members * step, rtol=1e-6)


@pytest.mark.parametrize("wrong", [{"momentum": 1.0}, {"momentum": -0.1}, {"rate": 0.0}])
@pytest.mark.parametrize("outer", [BlockMomentum, SlowMo, Nesterov])
def test_settings_without_a_gain_are_refused(outer: type, wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="outer step"):
        outer(**wrong)
