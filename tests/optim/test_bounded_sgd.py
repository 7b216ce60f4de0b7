from __future__ import annotations

import itertools

import pytest
import torch

from unisono.optim import bound_steps


def walk(longest: float, rate: float, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=rate, momentum=0.9)
    bound_steps(optimizer, longest)
    places = [x.detach().clone()]
    for gradient in gradients:
        x.grad = gradient.clone()
        optimizer.step()
        places.append(x.detach().clone())
    return places


@pytest.mark.parametrize("size", [1.0, 1e3, 1e30])
def test_no_step_is_longer_than_the_bound_whatever_the_gradients(size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [
        size * torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(50)
    ] + [torch.full((3,), size, dtype=torch.float64)] * 100
    places = walk(2.0, 0.4, gradients)
    lengths = [float((b - a).norm()) for a, b in itertools.pairwise(places)]
    assert max(lengths) <= 2.0 + 1e-9
    if size > 1:  # a steady gradient comes close to the bound: it is not needlessly tight
        assert lengths[-1] == pytest.approx(2.0, rel=1e-3)


def test_short_steps_are_the_same_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(30)]
    for a, b in zip(walk(2.0, 0.01, gradients), walk(0.0, 0.01, gradients), strict=True):
        assert torch.equal(a, b)
