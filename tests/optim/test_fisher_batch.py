"""A batch of Fisher estimates, against Kaldi's own figures and dense algebra."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_natural_gradient_dense import DenseNaturalGradient, Regime
from test_natural_gradient_vectors import CASES, VECTORS
from torch import Tensor

from support.fisher_batches import BatchedNaturalGradient
from unisono.optim import OnlineNaturalGradient

SIZES = [(31, 6), (90, 12), (91, 6), (90, 12), (7, 4)]
ROWS = 64


class Rows:
    """Minibatches whose columns are correlated, and unequal by two decades."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._mixing = [
            self._random(dim, dim) / dim**0.5 * torch.logspace(0, -2, dim) for dim, _ in SIZES
        ]

    def minibatch(self, scale: float = 1.0) -> list[Tensor]:
        return [scale * self._random(ROWS, len(m)) @ m for m in self._mixing]

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)


def batched() -> BatchedNaturalGradient:
    return BatchedNaturalGradient(SIZES, [4] * len(SIZES))


def error(found: Tensor, wanted: Tensor) -> float:
    """The relative error; not a number where something is not."""
    return float((found.double() - wanted.double()).norm() / wanted.norm().clamp(min=1e-30))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 5e-7), (torch.float32, 5e-6)])
def test_agrees_with_kaldi(dtype: torch.dtype, tolerance: float) -> None:
    files = [np.load(VECTORS / f"{case}.npz") for case in CASES]
    params = [json.loads(str(vectors["params"])) for vectors in files]
    assert {(p["num_samples_history"], p["alpha"]) for p in params} == {(2000.0, 4.0)}
    sizes = [(v["X"].shape[2], p["rank"]) for v, p in zip(files, params, strict=True)]
    ours = BatchedNaturalGradient(sizes, [p["update_period"] for p in params])
    for t in range(max(len(vectors["X"]) for vectors in files)):
        for index, (vectors, settings_) in enumerate(zip(files, params, strict=True)):
            if t >= len(vectors["X"]):
                continue
            first, last = settings_["freeze"]
            ours.estimates[index].frozen = first <= t < last
            x = torch.from_numpy(vectors["X"][t]).to(dtype)
            rows, scale = ours.precondition(index, x)
            wanted_scale = float(vectors["scale"][t])
            assert float(scale) == pytest.approx(wanted_scale, rel=tolerance)
            if t in set(vectors["iters"].tolist()):
                found = float(scale) * rows[torch.from_numpy(vectors[f"rows_{t}"].astype(np.int64))]
                wanted = torch.from_numpy(wanted_scale * vectors[f"out_{t}"].astype(np.float64))
                assert error(found, wanted) <= tolerance, (CASES[index], t)


regimes = st.builds(
    Regime,
    dim=st.integers(1, 30),
    rank=st.integers(1, 15),
    update_period=st.integers(1, 5),
    num_samples_history=st.sampled_from([20.0, 500.0, 2000.0]),
    num_minibatches_history=st.just(0.0),
    alpha=st.sampled_from([0.0, 0.3, 1.0, 4.0, 100.0]),
    rows=st.just("many"),
    scales=st.sampled_from(["steady", "zero first", "zero last", "jump", "tiny"]),
    decay=st.sampled_from([0.0, 0.7]),
    mean=st.sampled_from([0.0, 2.0]),
    frozen=st.sampled_from([(0, 0), (8, 15)]),
    seed=st.integers(0, 10_000),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(regimes)
def test_agrees_with_dense_algebra(regime: Regime) -> None:
    regime = Regime(**{**vars(regime), "rank": min(regime.rank, (regime.dim + 1) // 2)})
    dense = DenseNaturalGradient(**regime.settings())
    ours = BatchedNaturalGradient(
        [(regime.dim, regime.rank)],
        [regime.update_period],
        num_samples_history=regime.num_samples_history,
        alpha=regime.alpha,
    )
    for call, x in enumerate(regime.minibatches()):
        dense.frozen = ours.estimates[0].frozen = regime.frozen[0] <= call < regime.frozen[1]
        wanted = torch.from_numpy(dense.precondition(x.astype(np.float64)))
        rows, scale = ours.precondition(0, torch.from_numpy(x).double())
        assert error(scale * rows, wanted) < 1e-5


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-7), (torch.float32, 1e-5), (torch.bfloat16, 0.1)],
)
def test_agrees_with_one_matrix_after_the_other(dtype: torch.dtype, tolerance: float) -> None:
    rows, ours = Rows(), batched()
    exact = [OnlineNaturalGradient(rank, update_period=4) for _, rank in SIZES]
    for t in range(30):
        scale = (1.0, 1e3, 0.0)[(t > 14) + (t == 20)]
        for index, x in enumerate(rows.minibatch(scale)):
            wanted, wanted_scale = exact[index].precondition(x.double())
            found, found_scale = ours.precondition(index, x.to(dtype))
            assert error(found_scale * found, wanted_scale * wanted) < tolerance, t


def test_a_minibatch_that_is_not_finite_leaves_the_estimate() -> None:
    rows, ours = Rows(), batched()
    for index, x in enumerate(rows.minibatch()):
        ours.precondition(index, x)
    before = [ours.batch.estimate(index) for index in range(len(SIZES))]
    for index, x in enumerate(rows.minibatch()):
        x[3, 4] = (torch.nan, torch.inf)[index % 2]
        ours.precondition(index, x)
        basis, core, rho = ours.batch.estimate(index)
        assert torch.equal(basis, before[index][0])
        assert torch.equal(core, before[index][1])
        assert rho == before[index][2] and math.isfinite(rho)


def test_only_pending_estimates_are_updated() -> None:
    rows, ours = Rows(), batched()
    for index, x in enumerate(rows.minibatch()):
        ours.precondition(index, x)
    before = [ours.batch.estimate(index) for index in range(len(SIZES))]
    ours.precondition(1, rows.minibatch()[1])
    ours.batch.update()  # nothing is pending
    for index, (basis, core, _) in enumerate(before):
        now, core_now, _ = ours.batch.estimate(index)
        assert torch.equal(core, core_now) == (index != 1)
        assert torch.equal(basis, now) == (index != 1)
        torch.testing.assert_close(now @ now.T, torch.eye(len(now), dtype=torch.float64))


def test_states_are_exact_and_go_to_the_other_implementation() -> None:
    rows, ours, again = Rows(), batched(), batched()
    exact = [OnlineNaturalGradient(rank, update_period=4) for _, rank in SIZES]
    for t in range(20):
        for index, x in enumerate(rows.minibatch()):
            if t == 12:
                state = ours.estimates[index].state_dict()
                again.estimates[index].load_state_dict(state)
                exact[index].load_state_dict(state)
            found, scale = ours.precondition(index, x)
            if t >= 12:
                same, same_scale = again.precondition(index, x)
                assert torch.equal(found, same) and torch.equal(scale, same_scale)
                wanted, wanted_scale = exact[index].precondition(x.double())
                assert error(scale * found, wanted_scale * wanted) < 1e-5
