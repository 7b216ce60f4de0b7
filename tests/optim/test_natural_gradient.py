from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from unisono.errors import UserError
from unisono.optim import OnlineNaturalGradient

State = tuple[Tensor, Tensor, float]


def minibatches(
    rows: int, dim: int, calls: int, dtype: torch.dtype = torch.float64
) -> Iterator[Tensor]:
    """Correlated rows with a mean, the same at every call of this function."""
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    mixing *= (1.0 + torch.arange(dim).unsqueeze(1)) ** -0.8
    for _ in range(calls):
        noise = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
        yield (0.5 + noise @ mixing).to(dtype)


def state_of(natural_gradient: OnlineNaturalGradient) -> State:
    state = natural_gradient.state_dict()
    basis, d = state["basis"], state["d"]
    assert isinstance(basis, Tensor)
    assert isinstance(d, Tensor)
    return basis.clone(), d.clone(), float(state["rho"])


def fisher_of(natural_gradient: OnlineNaturalGradient) -> Tensor:
    basis, d, rho = state_of(natural_gradient)
    return basis.T @ torch.diag(d) @ basis + rho * torch.eye(basis.shape[1], dtype=torch.float64)


def same(one: State, other: State) -> bool:
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1]) and one[2] == other[2]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-6)])
@pytest.mark.parametrize("rows", [6, 100])
def test_basis_stays_orthonormal(rows: int, dtype: torch.dtype, tolerance: float) -> None:
    natural_gradient = OnlineNaturalGradient(rank=12)
    for call, x in enumerate(minibatches(rows, 40, 30, dtype)):
        silent, loud = call < 3, call % 7 == 5
        natural_gradient.precondition(x * (0.0 if silent else 1e3 if loud else 1.0))
        basis, d, rho = state_of(natural_gradient)
        basis = basis.double()
        assert (basis @ basis.T - torch.eye(12)).abs().max() < tolerance
        assert rho >= 1e-10
        assert min(rho, float(d.min())) > 0.9 * 5e-4 * float(d.max())


def test_update_keeps_the_trace_where_no_floor_fired() -> None:
    natural_gradient = OnlineNaturalGradient(rank=5, num_samples_history=500.0)
    checked = 0
    for x in minibatches(60, 30, 12):
        before = None
        if checked or natural_gradient.state_dict()["t"]:
            before = fisher_of(natural_gradient).trace()
        natural_gradient.precondition(x)
        _, d, rho = state_of(natural_gradient)
        if before is not None and float(d.min()) > 2 * 5e-4 * float(d.max() + rho):
            eta = 1.0 - math.exp(-60 / 500.0)
            expected = eta * x.square().sum() / 60 + (1.0 - eta) * before
            torch.testing.assert_close(
                fisher_of(natural_gradient).trace(), expected, rtol=1e-12, atol=0.0
            )
            checked += 1
    assert checked > 5


@pytest.mark.parametrize("alpha", [0.0, 1.0, 4.0])
def test_rows_are_the_dense_inverse(alpha: float) -> None:
    natural_gradient = OnlineNaturalGradient(rank=7, alpha=alpha)
    for call, x in enumerate(minibatches(50, 25, 8)):
        fisher = fisher_of(natural_gradient) if call else None
        rows, scale = natural_gradient.precondition(x)
        torch.testing.assert_close((scale * rows).norm(), x.norm())
        assert ((rows * x).sum(1) >= 0).all()
        if fisher is None:
            continue
        smoothed = fisher + alpha * fisher.trace() / 25 * torch.eye(25, dtype=torch.float64)
        beta = torch.linalg.eigvalsh(smoothed)[0]
        torch.testing.assert_close(
            rows, beta * torch.linalg.solve(smoothed, x.T).T, rtol=1e-9, atol=1e-9
        )


def test_scale_of_the_data_does_not_matter() -> None:
    one, other = OnlineNaturalGradient(rank=8), OnlineNaturalGradient(rank=8)
    for x in minibatches(50, 30, 15):
        rows, scale = one.precondition(x)
        scaled_rows, same_scale = other.precondition(1000.0 * x)
        torch.testing.assert_close(scaled_rows, 1000.0 * rows, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(same_scale, scale, rtol=1e-7, atol=0.0)


def test_infinite_smoothing_is_plain_sgd() -> None:
    natural_gradient = OnlineNaturalGradient(rank=8, alpha=1e9)
    for x in minibatches(50, 30, 5):
        rows, scale = natural_gradient.precondition(x)
        torch.testing.assert_close(rows, x, rtol=0.0, atol=1e-6)
        assert float(scale) == pytest.approx(1.0, abs=1e-6)


def test_updates_at_ten_calls_and_then_each_period() -> None:
    natural_gradient = OnlineNaturalGradient(rank=4, update_period=4)
    updated = []
    for t, x in enumerate(minibatches(30, 10, 22)):
        before = state_of(natural_gradient)
        natural_gradient.precondition(x)
        if not same(before, state_of(natural_gradient)):
            updated.append(t)
    assert updated == [*range(11), 14, 18]


def test_frozen_changes_nothing_but_the_count() -> None:
    natural_gradient = OnlineNaturalGradient(rank=4)
    first, second = minibatches(30, 10, 2)
    natural_gradient.frozen = True
    natural_gradient.precondition(first)
    made = state_of(natural_gradient)
    assert made[0].shape == (4, 10), "the first call makes an estimate, frozen or not"
    rows, scale = natural_gradient.precondition(second)
    again, scale_again = natural_gradient.precondition(second)
    assert same(made, state_of(natural_gradient))
    assert torch.equal(rows, again)
    assert torch.equal(scale, scale_again)
    assert natural_gradient.state_dict()["t"] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stop", [0, 1, 12, 13])
def test_resume_equals_uninterrupted(stop: int, dtype: torch.dtype) -> None:
    def fresh() -> OnlineNaturalGradient:
        return OnlineNaturalGradient(rank=6, update_period=3)

    whole, half = fresh(), fresh()
    for t, x in enumerate(minibatches(40, 20, 20, dtype)):
        if t == stop:
            state = half.state_dict()
            assert all(isinstance(value, Tensor | int | float) for value in state.values())
            half = fresh()
            half.load_state_dict(
                {k: v + 0 if isinstance(v, Tensor) else v for k, v in state.items()}
            )
        whole.frozen = half.frozen = t in (10, 11)
        expected, expected_scale = whole.precondition(x)
        rows, scale = half.precondition(x)
        assert torch.equal(rows, expected)
        assert torch.equal(scale, expected_scale)


def test_state_of_another_rank_is_refused() -> None:
    natural_gradient = OnlineNaturalGradient(rank=6)
    natural_gradient.precondition(next(minibatches(40, 20, 1)))
    with pytest.raises(UserError, match="rank=5"):
        OnlineNaturalGradient(rank=5).load_state_dict(natural_gradient.state_dict())
    with pytest.raises(UserError, match="state_dict"):
        OnlineNaturalGradient().load_state_dict({"t": 3})


@pytest.mark.parametrize("alpha", [0.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_place_is_the_same(alpha: float, dtype: torch.dtype) -> None:
    one, other = OnlineNaturalGradient(5, alpha=alpha), OnlineNaturalGradient(5, alpha=alpha)
    for x in minibatches(40, 20, 6, dtype):
        before = x.clone()
        expected, expected_scale = one.precondition(x)
        assert torch.equal(x, before), "without out= the input is left alone"
        rows, scale = other.precondition(x, out=x)
        assert rows is x
        assert rows.dtype == dtype
        assert torch.equal(rows, expected)
        assert torch.equal(scale, expected_scale)


def test_strides_autocast_and_autograd_change_nothing() -> None:
    one, other = OnlineNaturalGradient(5), OnlineNaturalGradient(5)
    for x in minibatches(40, 20, 6, torch.float32):
        expected, expected_scale = one.precondition(x)
        padded = torch.full((40, 32), 7.0)
        padded[:, :20] = x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rows, scale = other.precondition(padded[:, :20].requires_grad_())
        assert rows.dtype == torch.float32
        assert not rows.requires_grad
        torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(scale, expected_scale, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("alpha", [0.0, 4.0])
def test_float32_holds_where_almost_everything_cancels(alpha: float) -> None:
    # Rows in five dimensions of sixty, after zeros: most directions of the basis see no data,
    # and with alpha 0 what is left of a row is a thousandth of it.
    generator = torch.Generator().manual_seed(3)
    directions = torch.randn(5, 60, generator=generator)
    single, double = OnlineNaturalGradient(12, alpha=alpha), OnlineNaturalGradient(12, alpha=alpha)
    for call in range(20):
        x = torch.randn(40, 5, generator=generator) @ directions * float(call >= 3)
        rows, scale = single.precondition(x)
        expected, expected_scale = double.precondition(x.double())
        error = (scale * rows - expected_scale * expected).norm()
        assert error <= 1e-5 * x.norm()


def test_float32_holds_where_all_rows_are_alike() -> None:
    # N alike rows are rounded alike: what a sum loses, it loses N times, at each update again.
    single = OnlineNaturalGradient(2, num_minibatches_history=100.0)
    double = OnlineNaturalGradient(2, num_minibatches_history=100.0)
    x = next(minibatches(1, 30, 1, torch.float32)).repeat(512, 1)
    for _ in range(60):
        rows, scale = single.precondition(x)
        expected, expected_scale = double.precondition(x.double())
        assert (scale * rows - expected_scale * expected).norm() <= 1e-4 * x.norm()


def test_float32_rows_whose_products_float32_cannot_hold() -> None:
    single, double = OnlineNaturalGradient(5), OnlineNaturalGradient(5)
    for call, x in enumerate(minibatches(300, 20, 8, torch.float32)):
        x *= 1e18 if call == 4 else 1.0
        rows, scale = single.precondition(x)
        expected, expected_scale = double.precondition(x.double())
        assert (scale * rows - expected_scale * expected).norm() <= 1e-5 * x.norm()


def test_what_is_not_finite_leaves_the_estimate_alone() -> None:
    one, other = OnlineNaturalGradient(5), OnlineNaturalGradient(5)
    broken = torch.full((40, 20), math.nan, dtype=torch.float64)
    other.precondition(broken)
    assert other.state_dict()["t"] == 0
    first, second = minibatches(40, 20, 2)
    one.precondition(first)
    other.precondition(first)
    broken[1:] = 1.0
    rows, _ = other.precondition(broken)
    assert rows.isnan().any()
    assert same(state_of(one), state_of(other))
    assert torch.equal(one.precondition(second)[0], other.precondition(second)[0])


def test_dimension_one_comes_back_and_does_not_count() -> None:
    natural_gradient = OnlineNaturalGradient()
    x = torch.randn(8, 1)
    rows, scale = natural_gradient.precondition(x)
    assert torch.equal(rows, x)
    assert rows.data_ptr() != x.data_ptr()
    assert float(scale) == 1.0
    assert natural_gradient.state_dict()["t"] == 0


def test_arithmetic_follows_the_rows() -> None:
    natural_gradient = OnlineNaturalGradient(5)
    x = next(minibatches(40, 20, 1))
    for dtype in (torch.float32, torch.float64, torch.float32):
        rows, scale = natural_gradient.precondition(x.to(dtype))
        assert rows.dtype == dtype
        assert scale.dtype == torch.float64
        assert scale.dim() == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"rank": 0},
        {"update_period": 0},
        {"num_samples_history": 0.0},
        {"num_minibatches_history": 1.0},
        {"alpha": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        OnlineNaturalGradient(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "x", [torch.ones(3), torch.ones(0, 4), torch.ones(3, 4, dtype=torch.float16)]
)
def test_rows_of_the_wrong_kind_are_refused(x: Tensor) -> None:
    with pytest.raises(UserError, match="float32, float64 or bfloat16 rows"):
        OnlineNaturalGradient().precondition(x)


def test_bfloat16_rows_are_preconditioned_like_the_same_rows_in_float64() -> None:
    """Of 30 directions the first is 30 times as long as the last."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.logspace(0, -1.5, 30)
    mixed = torch.linalg.qr(torch.randn(30, 30, generator=generator))[0]
    narrow, wide = (OnlineNaturalGradient(rank=8, update_period=2) for _ in range(2))
    for t in range(60):
        x = ((torch.randn(64, 30, generator=generator) * spread) @ mixed).bfloat16()
        rows, scale = narrow.precondition(x)
        expected, expected_scale = wide.precondition(x.double())
        assert rows.dtype is torch.bfloat16
        difference = (scale * rows - expected_scale * expected).norm() / x.double().norm()
        assert difference < 0.01, t
    basis, before = (n.state_dict()["basis"] for n in (narrow, wide))
    assert basis.dtype is torch.float32
    assert (basis @ basis.T - torch.eye(8)).abs().max() < 1e-5
    assert (basis.double().T @ basis.double() - before.T @ before).norm() < 0.1


def test_a_stream_may_change_between_float32_and_bfloat16() -> None:
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(1))
    changing, steady = (OnlineNaturalGradient(rank=3) for _ in range(2))
    for t in range(20):
        rows, scale = changing.precondition(x.bfloat16() if t % 3 else x)
        expected, expected_scale = steady.precondition(x)
        assert (scale * rows - expected_scale * expected).norm() < 0.02 * x.norm()


def test_another_dimension_is_refused() -> None:
    natural_gradient = OnlineNaturalGradient(rank=2)
    natural_gradient.precondition(torch.randn(8, 4))
    with pytest.raises(UserError, match="5 columns, earlier minibatches had 4"):
        natural_gradient.precondition(torch.randn(8, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("factor", "near"), [(256.0, 0.0), (100.0, 2e-2)])
def test_a_factor_is_what_the_estimate_sees(dtype: torch.dtype, factor: float, near: float) -> None:
    generator = torch.Generator().manual_seed(3)
    near = near if dtype is torch.bfloat16 else near * 1e-3
    multiplied, given = OnlineNaturalGradient(rank=6), OnlineNaturalGradient(rank=6)
    for call in range(14):
        size = 0.0 if call == 6 else 1e-3 if call > 8 else 1e-2  # silence, then a jump
        x = size * torch.randn(40, 15, generator=generator).cumsum(1)
        x = x.to(dtype)
        kept, memory = x.clone(), torch.empty(40, 16, dtype=dtype)[:, :15]
        rows, scale = multiplied.precondition(x * factor)
        unscaled, same = given.precondition(x, out=memory, factor=factor)
        assert unscaled is memory and torch.equal(x, kept)
        error = (same * unscaled.double() * factor - scale * rows.double()).norm()
        assert float(error) <= near * float((scale * rows.double()).norm())
    state, other = multiplied.state_dict(), given.state_dict()
    assert other["rho"] == pytest.approx(state["rho"], rel=near, abs=0.0)


@pytest.mark.parametrize("alike", [False, True])
def test_the_scale_of_bfloat16_rows_restores_their_length(alike: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    natural_gradient = OnlineNaturalGradient(rank=4, update_period=4)
    for call in range(20):
        x = torch.randn(1 if alike else 64, 31, generator=generator).expand(64, 31).bfloat16()
        rows, scale = natural_gradient.precondition(x)
        length = float(scale * rows.double().norm() / x.double().norm())
        updating = call <= 10 or call % 4 == 2
        alone = 2**-8 if updating else 2**-7
        assert length == pytest.approx(1.0, abs=alone if alike else 2**-10)
