"""Online natural gradient against a second implementation that takes Kaldi's very steps."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unisono.optim import OnlineNaturalGradient

Matrix = NDArray[np.float64]


class StepByStep:
    """Kaldi's steps in float64, with all that it does about rounding.

    The rows of the basis are repaired where they are no longer orthonormal, by a triangular factor
    or one after the other, and eigenvalues that rounding has made too small are raised.
    """

    def __init__(self, **settings: float) -> None:
        self.settings = settings
        self.frozen = False
        self.calls = 0
        self.basis: Matrix = np.zeros((0, 0))
        self.d: Matrix = np.zeros(0)
        self.rho = 1e-10

    def precondition(self, x: Matrix) -> Matrix:
        """Return the rows multiplied by the scale."""
        count, dim = x.shape
        if dim == 1:
            return x
        if self.calls == 0:
            rank = min(int(self.settings["rank"]), dim - 1)
            self.basis, self.d = np.zeros((rank, dim)), np.full(rank, 1e-10)
            for i, row in enumerate(self.basis):
                row[i::rank] = 1.0
                row[i] = 1.1
                row /= np.linalg.norm(row)
            for _ in range(3 if count > rank else 1):
                self.update(x)
        alpha, size = self.settings["alpha"], np.linalg.norm(x)
        beta = self.rho * (1 + alpha) + alpha / dim * self.d.sum()
        rows = x - (x @ self.basis.T * (self.d / (beta + self.d))) @ self.basis
        period = int(self.settings["update_period"])
        if not self.frozen and (self.calls <= 10 or (self.calls - 10) % period == 0):
            self.update(x)
        self.calls += 1
        return rows * (size / np.linalg.norm(rows)) if size > 0 else rows

    def update(self, x: Matrix) -> None:
        (count, dim), rank, rho = x.shape, len(self.d), self.rho
        eta = min(0.9, 1 - math.exp(-count / self.settings["num_samples_history"]))
        if self.settings["num_minibatches_history"] > 0:
            eta = 1 / self.settings["num_minibatches_history"]
        y = eta / count * (x @ self.basis.T).T @ x
        y += (1 - eta) * (self.d + rho)[:, None] * self.basis
        c, u = np.linalg.eigh(y @ y.T)
        c, u = c[::-1], u[:, ::-1]
        least = (rho * (1 - eta)) ** 2
        doubtful = c[0] > 1e6 * c[-1] or c.min() < least
        s = np.sqrt(np.maximum(c, least))
        trace = eta / count * (x * x).sum() + (1 - eta) * (dim * rho + self.d.sum())
        rho = (trace - s.sum()) / (dim - rank)
        floor = max(1e-10, 5e-4 * s.max())
        self.rho, self.d = max(rho, floor), np.maximum(s - rho, floor)
        self.basis = (u / s).T @ y
        if doubtful:
            self.basis = repaired(self.basis)


def repaired(basis: Matrix) -> Matrix:
    """Return orthonormal rows."""
    products = basis @ basis.T
    if np.abs(products - np.eye(len(basis))).max() <= 1e-3:
        return basis
    try:
        inverse = np.linalg.inv(np.linalg.cholesky(products))
        if inverse.max() < 100:
            turned: Matrix = inverse @ basis
            return turned
    except np.linalg.LinAlgError:
        pass
    basis = basis.copy()
    for i, row in enumerate(basis):
        for _ in range(100):
            before = row @ row
            for above in basis[:i]:
                row -= (row @ above) * above
            if row @ row > 0.01 * before:
                break
        row /= np.linalg.norm(row)
    return basis


@dataclass(frozen=True)
class Sequence:
    """Minibatches drawn from a seed, and what goes with them."""

    seed: int

    def draw(self) -> tuple[dict[str, Any], list[NDArray[np.float32]], range]:
        """Return settings, minibatches and the calls that are frozen."""
        rng = np.random.default_rng(self.seed)
        dim = int(rng.choice([1, 2, 3, 5, 8, 17, 30, 40, 64, 100, 140]))
        settings = {
            "rank": int(rng.choice([1, 2, 5, 10, 20, 40, 80])),
            "update_period": int(rng.choice([1, 1, 2, 3, 4, 7, 50])),
            "num_samples_history": float(rng.choice([1, 30, 500, 2000, 2000, 1e5, 1e6])),
            "num_minibatches_history": float(rng.choice([0, 0, 0, 1.05, 2, 10, 100])),
            "alpha": float(rng.choice([0, 0.1, 1, 4, 4, 100, 1e6])),
        }
        calls = int(rng.choice([5, 20, 60]))
        first = int(rng.integers(0, calls))
        frozen = range(first, first + int(rng.choice([0, 0, 5, 15])))
        return settings, list(self._minibatches(rng, dim, calls)), frozen

    def _minibatches(
        self, rng: np.random.Generator, dim: int, calls: int
    ) -> Iterator[NDArray[np.float32]]:
        kind, course = rng.integers(11), rng.integers(8)
        most = int(rng.choice([1, 2, 5, 16, 64, 128, 256, 512]))
        changing = rng.random() < 0.3
        size = float(rng.choice([1, 1, 1, 1e-3, 1e3, 1e-6, 1e-15, 1e-8]))
        mixing = rng.standard_normal((dim, dim))
        mixing *= (1 + np.arange(dim)[:, None]) ** -float(rng.choice([0, 0.7, 1.5, 3]))
        few = rng.standard_normal((max(1, dim // 4), dim))
        mean = 2 * rng.standard_normal(dim)
        for call in range(calls):
            rows = int(rng.integers(1, 2 * most + 1)) if changing else most
            noise = rng.standard_normal((rows, dim))
            state = np.eye(dim)[rng.integers(0, dim, rows)]
            share = np.exp(noise @ mixing / dim**0.5)
            x = [
                noise,
                noise @ mixing,
                0.3 * noise @ mixing + mean,
                np.c_[np.maximum(noise @ mixing, 0)[:, 1:], np.ones(rows)],
                state - share / share.sum(1, keepdims=True),  # softmax derivatives
                np.repeat(noise[:1] @ mixing, rows, 0),  # all alike, others each time
                noise[:, : len(few)] @ few,  # of low rank
                state,
                noise * (rng.random((rows, dim)) < 0.05),
                noise * (np.arange(dim) % 3 == 0),  # some columns are always zero
                np.repeat(mean[None], rows, 0),
            ][kind]
            part = call / calls
            factor = [
                1.0,
                float(call >= 3),
                float(call < calls - 3),
                float(not calls // 3 <= call < calls // 3 + 3),
                1e3 if part >= 0.5 else 1.0,
                1e-3 if part >= 0.5 else 1.0,
                1e3 if call % 2 else 1.0,
                10 ** (6 * part - 3),
            ][course]
            yield (x * (size * factor)).astype(np.float32)

    def errors(self) -> tuple[float, float, float]:
        """Return how well float64 knows the result, and the errors in float64 and float32."""
        settings, minibatches, frozen = self.draw()
        rng = np.random.default_rng(self.seed + 10**6)
        steps, shaken = StepByStep(**settings), StepByStep(**settings)
        double, single = OnlineNaturalGradient(**settings), OnlineNaturalGradient(**settings)
        known, worst_double, worst_single = 0.0, 0.0, 0.0
        for call, x in enumerate(minibatches):
            if call % 7 == 3:
                double, single = again(double, settings, call), again(single, settings, call)
            for one in (steps, shaken, double, single):
                one.frozen = call in frozen
            expected = steps.precondition(x.astype(np.float64))
            order = rng.permutation(len(x))
            rounded = x * (1 + 2.2e-16 * rng.standard_normal(x.shape))
            other = shaken.precondition(rounded[order])[np.argsort(order)]
            size = max(float(np.linalg.norm(expected)), 1e-30)
            known = max(known, float(np.linalg.norm(other - expected)) / size)
            wide, scale = double.precondition(laid_out(torch.from_numpy(x).double(), call))
            ours = (scale * wide).numpy()
            worst_double = max(worst_double, float(np.linalg.norm(ours - expected)) / size)
            narrow, scale = single.precondition(laid_out(torch.from_numpy(x), call))
            ours = (scale * narrow.double()).numpy()
            worst_single = max(worst_single, float(np.linalg.norm(ours - expected)) / size)
        return known, worst_double, worst_single

    def reached(self) -> bool:
        """Return whether the rows of every minibatch reach all directions of the basis."""
        settings, minibatches, _ = self.draw()
        rank = min(settings["rank"], minibatches[0].shape[1] - 1)
        return all(np.linalg.matrix_rank(x.astype(np.float64)) > rank for x in minibatches)


def again(
    natural_gradient: OnlineNaturalGradient, settings: dict[str, Any], call: int
) -> OnlineNaturalGradient:
    """Return what should go on in the same way."""
    if call % 3 == 0:
        return copy.deepcopy(natural_gradient)
    if call % 3 == 1:
        copied: OnlineNaturalGradient = pickle.loads(pickle.dumps(natural_gradient))
        return copied
    resumed = OnlineNaturalGradient(**settings)
    resumed.load_state_dict(natural_gradient.state_dict())
    return resumed


def laid_out(x: torch.Tensor, call: int) -> torch.Tensor:
    """Return the same numbers in another place."""
    layouts = (x, x.T.contiguous().T, torch.cat([x, x], 1)[:, : x.shape[1]])
    return layouts[call % len(layouts)]


def check(seeds: list[int]) -> None:
    """Wherever rounding does not decide the result, it is Kaldi's.

    Directions that no row reaches rest on eigenvalues near the rounding of float64 itself.
    """
    clear = 0
    for seed in seeds:
        known, double, single = Sequence(seed).errors()
        if known < 1e-8:
            clear += 1
            reached = Sequence(seed).reached()
            assert double < (1e-6 if reached else 1e-5), f"seed {seed}: {double:.1e} in float64"
            assert single < (1e-4 if reached else 1e-2), f"seed {seed}: {single:.1e} in float32"
    assert clear > 0.85 * len(seeds)


CHEAP = [seed for seed in range(13) if seed != 7]
"""Some sequences take five seconds, others none."""


def test_some_sequences() -> None:
    check(CHEAP)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_sequences() -> None:
    check([seed for seed in range(2500) if seed not in CHEAP])
