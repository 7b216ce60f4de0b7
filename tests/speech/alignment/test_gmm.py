"""Mixtures against the formula, and what every re-estimation must keep."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.speech.alignment.gmm import GaussianMixtures


@pytest.fixture
def mixtures() -> GaussianMixtures:
    random = np.random.default_rng(3)
    weights = random.uniform(0.2, 1, 6)
    starts = np.array([0, 1, 4, 6])
    weights /= np.repeat(np.add.reduceat(weights, starts[:-1]), np.diff(starts))
    return GaussianMixtures(
        starts=starts,
        weights=weights,
        means=random.normal(0, 2, (6, 4)),
        variances=random.uniform(0.3, 3, (6, 4)),
    )


def frames(count: int) -> np.ndarray:
    return np.random.default_rng(4).normal(0, 2, (count, 4)).astype(np.float32)


def density(mixtures: GaussianMixtures, x: np.ndarray, state: int) -> float:
    total = 0.0
    for g in range(mixtures.starts[state], mixtures.starts[state + 1]):
        each = np.exp(-0.5 * (x - mixtures.means[g]) ** 2 / mixtures.variances[g])
        total += mixtures.weights[g] * np.prod(each / np.sqrt(2 * np.pi * mixtures.variances[g]))
    return total


def test_loglikes_are_the_formula(mixtures: GaussianMixtures) -> None:
    x = frames(50)
    wanted = [[np.log(density(mixtures, row, s)) for s in range(3)] for row in x.astype(float)]
    np.testing.assert_allclose(mixtures.loglikes(x), wanted, atol=1e-4)


def test_accumulation_adds_up_and_finds_the_same_likelihood(mixtures: GaussianMixtures) -> None:
    x, states = frames(300), np.random.default_rng(5).integers(0, 3, 300)
    whole = mixtures.accumulate(x, states)
    np.testing.assert_allclose(
        np.add.reduceat(whole.count, mixtures.starts[:-1]), np.bincount(states)
    )
    np.testing.assert_allclose(whole.total.sum(0), x.sum(0, dtype=float), rtol=1e-4)
    likes = mixtures.loglikes(x)[np.arange(300), states]
    assert whole.loglike == pytest.approx(float(likes.sum(dtype=float)), rel=1e-5)
    parts = mixtures.accumulate(x[:100], states[:100]) + mixtures.accumulate(x[100:], states[100:])
    np.testing.assert_allclose(parts.square, whole.square, rtol=1e-6)


def test_updates_never_lower_the_likelihood_and_growth_keeps_it(mixtures: GaussianMixtures) -> None:
    x, states = frames(2000), np.random.default_rng(5).integers(0, 3, 2000)
    last = -np.inf
    for _ in range(8):
        statistics = mixtures.accumulate(x, states)
        assert statistics.loglike > last - 1e-3
        last = statistics.loglike
        mixtures = mixtures.update(statistics)
    before = mixtures.accumulate(x, states)
    grown = mixtures.grow(12, before.count, np.random.default_rng(0))
    assert grown.gaussians == 12
    np.testing.assert_allclose(np.add.reduceat(grown.weights, grown.starts[:-1]), 1)
    assert grown.accumulate(x, states).loglike == pytest.approx(before.loglike, abs=5)
    most = grown.grow(10_000, grown.accumulate(x, states).count, np.random.default_rng(0))
    sizes = np.diff(most.starts)
    assert (np.bincount(states) / sizes >= 20).all() and most.gaussians > 50
