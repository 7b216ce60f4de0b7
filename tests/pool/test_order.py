"""An order is a bijection for every key, can be entered anywhere, and looks random."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from unisono.pool import order as order_module
from unisono.pool.order import Order

GOLDEN_TEN = [2, 5, 4, 3, 6, 8, 9, 7, 0, 1]
GOLDEN_BILLION = [683500675, 699300002, 769482956, 741597773]
LARGE = 1_000_003  # a prime: a = 1001, b = 1000, and nearly a whole row to walk past


def deviation(counts: NDArray[np.int64], freedom: int) -> float:
    """Pearson's chi-square of equally likely cells, as standard deviations from its mean."""
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / math.sqrt(2 * freedom)


def squares(x: NDArray[np.int64], y: NDArray[np.int64], span: int, cells: int) -> float:
    """Deviation from uniform of the pairs (x, y), both in [0, span), on cells x cells squares."""
    counts = np.bincount((x * cells // span) * cells + y * cells // span, minlength=cells**2)
    return deviation(counts, cells**2 - 1)


def reference(examples: int, seed: int, epoch: int, place: int) -> int:
    """The class's docstring in plain integers, one place at a time."""
    a = math.isqrt(examples)
    a += a * a < examples
    b = examples // a + (examples % a > 0)

    def mix(v: int) -> int:
        v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) % 2**64
        return v ^ (v >> 31)

    def key(j: int) -> int:
        state = 0
        for word in (seed, epoch, j):
            state = mix((state + word + 0x9E3779B97F4A7C15) % 2**64)
        return state

    def f(j: int, v: int, modulus: int) -> int:
        return modulus * (mix((v + key(j)) % 2**64) >> 32) >> 32

    value = place
    while True:
        left, right = divmod(value, b)
        for j in range(0, 24 if a < 16 else 8, 2):
            left = (left + f(j, right, a)) % a
            right = (right + f(j + 1, left, b)) % b
        value = left * b + right
        if value < examples:
            return value


@pytest.mark.parametrize("examples", [*range(1, 40), 97, 256, 257, 1000, 10_007, LARGE, 2**20])
def test_every_example_stands_at_one_place(examples: int) -> None:
    for seed, epoch in ((0, 0), (0, 1), (7, 3), (-1, 2**40)):
        found = Order(examples, seed).indices(epoch, 0, examples)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(np.sort(found), np.arange(examples))


@pytest.mark.parametrize("examples", [1, 2, 3, 10, 101, 300, LARGE, 10**12 + 39, 2**62])
def test_agrees_with_the_formula_in_plain_integers(examples: int) -> None:
    for seed, epoch, start in ((0, 0, 0), (2**64 - 1, 5, examples // 2), (3, 1, examples - 1)):
        stop = min(start + 4, examples)
        expected = [reference(examples, seed, epoch, place) for place in range(start, stop)]
        assert Order(examples, seed).indices(epoch, start, stop).tolist() == expected


def test_the_order_never_changes_between_versions() -> None:
    assert Order(10, 0).indices(0, 0, 10).tolist() == GOLDEN_TEN
    assert Order(10**9, 1).indices(2, 5, 9).tolist() == GOLDEN_BILLION


def test_pieces_of_any_size_make_the_whole() -> None:
    order = Order(50_021, seed=4)
    whole = order.indices(1, 0, 50_021)
    order.indices(0, 0, 10)  # another epoch between leaves no trace
    cuts = [0, 0, 1, 257, 8191, 8192, 8193, 40_000, 50_021]
    pieces = [order.indices(1, start, stop) for start, stop in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("examples", [3, 4])
def test_every_order_of_a_few_examples_is_equally_likely(examples: int) -> None:
    orders = {p: k for k, p in enumerate(itertools.permutations(range(examples)))}
    order = Order(examples, seed=11)
    dynamic = [orders[tuple(order.indices(e, 0, examples).tolist())] for e in range(1800)]
    counts = np.bincount(dynamic, minlength=len(orders))
    assert deviation(counts, len(orders) - 1) < 4


@pytest.mark.parametrize("over_seeds", [True, False], ids=["seeds", "epochs"])
@pytest.mark.parametrize("examples", [2, 3, 7, 10, 37])
def test_each_example_lands_everywhere_equally_often(examples: int, over_seeds: bool) -> None:
    counts = np.zeros((examples, examples), dtype=np.int64)
    keys = 700
    for key in range(keys):
        seed, epoch = (key, 0) if over_seeds else (0, key)
        counts[np.arange(examples), Order(examples, seed).indices(epoch, 0, examples)] += 1
    assert deviation(counts, (examples - 1) ** 2) < 4


def neighbours(examples: int = LARGE) -> dict[str, float]:
    """How far pairs of places that the construction relates stray from independence."""
    order = Order(examples, seed=1)
    here = order.indices(0, 0, examples)
    places = np.arange(examples)
    row = math.isqrt(examples - 1) + 1
    side = -(-examples // row)
    strays = {
        f"places {lag} apart": squares(here[:-lag], here[lag:], examples, 32)
        for lag in (1, 2, side - 1, side, side + 1, examples // 2)
    }
    for lag in (1, side):
        step = (here[lag:] - here[:-lag]) % examples
        strays[f"steps to {lag} apart"] = deviation(np.bincount(step * 256 // examples), 255)
    strays["place and example"] = squares(places, here, examples, 32)
    strays["epochs"] = squares(here, order.indices(1, 0, examples), examples, 32)
    strays["seeds"] = squares(here, Order(examples, 2).indices(0, 0, examples), examples, 32)
    strays["columns"] = squares(places % side, here % side, side, 25)
    return strays


def test_related_places_of_a_large_order_look_independent() -> None:
    strays = neighbours()
    # Each pair's marginals are exact, so these chi-squares lie a little below their nominal mean.
    assert max(strays.values()) < 4, strays
    assert min(strays.values()) > -5, strays


def test_adjacent_places_are_not_correlated() -> None:
    for examples in (997, 10_007, LARGE):
        here = Order(examples, seed=3).indices(2, 0, examples).astype(np.float64)
        correlation = np.corrcoef(here[:-1], here[1:])[0, 1]
        assert abs(correlation) < 4 / math.sqrt(examples)


@pytest.mark.parametrize("half_rounds", [2, 3, 4])
def test_too_few_half_rounds_would_be_seen(
    half_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "_HALF_ROUNDS", half_rounds)
    assert max(neighbours().values()) > 10


@pytest.mark.parametrize(
    ("epoch", "start", "stop"), [(-1, 0, 1), (0, -1, 1), (0, 2, 1), (0, 0, 11)]
)
def test_places_outside_the_epoch_are_refused(epoch: int, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=r"epochs count|not within"):
        Order(10, 0).indices(epoch, start, stop)


@pytest.mark.parametrize("examples", [0, -1, 2**62 + 1])
def test_an_order_of_nothing_is_refused(examples: int) -> None:
    with pytest.raises(ValueError, match="examples"):
        Order(examples, 0)
