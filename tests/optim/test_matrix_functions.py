"""Functions of matrices by products, against their eigenvalues."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unisono.optim.matrix_functions import (
    inverse,
    inverse_root,
    largest_eigenvalue,
    positive_part,
)


def turned(values: Tensor, count: int = 3) -> tuple[Tensor, Tensor]:
    """Matrices with these eigenvalues, and their eigenvectors."""
    generator = torch.Generator().manual_seed(len(values))
    size = len(values)
    random = torch.randn(count, size, size, dtype=torch.float64, generator=generator)
    vectors, _ = torch.linalg.qr(random)
    return (vectors * values) @ vectors.mT, vectors


def norms(a: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.matrix_norm(a)
    return norm


@pytest.mark.parametrize("decades", [0.0, 4.0, 8.0])
@pytest.mark.parametrize("size", [1, 20, 80])
def test_an_inverse_root_is_that_of_the_eigenvalues(size: int, decades: float) -> None:
    values = torch.logspace(0, -decades, size, dtype=torch.float64)
    a, vectors = turned(values)
    wanted = (vectors * values**-0.5) @ vectors.mT
    found = inverse_root(a, norms(a), 1e-5)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8 * float(wanted.abs().max()))


def test_what_is_too_small_is_damped_and_never_blown_up() -> None:
    values = torch.tensor([1.0, 1e-4, 1e-14, 0.0], dtype=torch.float64)
    a, vectors = turned(values)
    found = vectors.mT @ inverse_root(a, norms(a), 1e-5) @ vectors
    got = found.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(got[:, :2], torch.tensor([[1.0, 100.0]] * 3, dtype=torch.float64))
    assert bool((got[:, 2:] <= 1e7).all()) and bool((got[:, 2:] >= 0).all())


@pytest.mark.parametrize("values", [[5.0] * 6, [5.0, 4.9, 1.0], [3.0, 0.0, 0.0], [2e-18, 1e-18]])
def test_the_largest_eigenvalue_is_found_to_half_a_percent(values: list[float]) -> None:
    a, _ = turned(torch.tensor(values, dtype=torch.float64))
    found = largest_eigenvalue(a)
    assert bool((found <= values[0] * (1 + 1e-9)).all())
    assert bool((found >= values[0] * 0.995).all())


def test_a_positive_part_has_no_negative_eigenvalue() -> None:
    values = torch.tensor([3.0, 0.2, 1e-3, -1e-3, -0.5, -4.0], dtype=torch.float64)
    a, vectors = turned(values)
    wanted = (vectors * values.clamp(min=0)) @ vectors.mT
    found = positive_part(a, norms(a), 1e-5)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def test_an_inverse_is_one() -> None:
    a, _ = turned(torch.logspace(2, 0, 40, dtype=torch.float64))
    unit = torch.eye(40, dtype=torch.float64).expand(3, -1, -1)
    torch.testing.assert_close(a @ inverse(a, norms(a), 0.01), unit, rtol=0, atol=1e-9)
