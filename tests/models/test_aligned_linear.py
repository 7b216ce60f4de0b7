"""Layers with outputs in aligned rows compute what `nn.Linear` does."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from unisono.models import aligned_linear, build
from unisono.models.aligned_linear import ALIGNMENT, AlignedLinear
from unisono.optim import NaturalGradientSGD

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""On a CPU the same is computed as on a GPU, by other kernels."""


@pytest.fixture(autouse=True)
def widths(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How wide the products are; layers on a CPU take that of a GPU."""
    seen: list[int] = []
    product = aligned_linear.functional.linear

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        seen.append(len(weight))
        return product(x, weight, bias)

    monkeypatch.setattr(aligned_linear.functional, "linear", noted)
    monkeypatch.setattr(aligned_linear, "on_tensor_cores", lambda x: True)
    yield seen


def pair(outputs: int, *, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """An aligned layer, and a plain one with the same parameters."""
    torch.manual_seed(0)
    aligned = AlignedLinear(12, outputs, bias=bias).to(DEVICE)
    plain = nn.Linear(12, outputs, bias=bias).to(DEVICE)
    plain.load_state_dict(aligned.state_dict())
    return aligned, plain


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [1, 5, 8, 17])
def test_outputs_and_gradients_are_those_of_a_linear_layer(
    outputs: int, bias: bool, narrow: bool, widths: list[int]
) -> None:
    results = []
    for layer in pair(outputs, bias=bias):
        x = torch.linspace(-2, 2, 84, device=DEVICE).view(7, 12).requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=narrow):
            y = layer(x)
        assert y.shape == (7, outputs)
        (y.float().square().sum()).backward()
        results.append([y.float(), x.grad, *(p.grad for p in layer.parameters())])
    assert widths[0] % ALIGNMENT == 0
    tolerance = 2e-2 if narrow else 1e-5
    for a, b in zip(*results, strict=True):
        assert a is not None
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_frames_of_utterances_are_mapped_one_by_one() -> None:
    aligned, plain = pair(5, bias=True)
    x = torch.randn(2, 3, 12, device=DEVICE)
    torch.testing.assert_close(aligned(x), plain(x))


def test_natural_gradient_is_that_of_linear_layers(widths: list[int]) -> None:
    """Over some steps, those included in which the estimates are updated."""
    aligned = build("dnn", seed=3, inputs=12, outputs=13, hidden=[10]).to(DEVICE)
    plain = copy.deepcopy(aligned)
    for module in plain.modules():
        if isinstance(module, AlignedLinear):
            module.__class__ = nn.Linear
    for model in (aligned, plain):
        optimizer = NaturalGradientSGD(model, 0.05, momentum=0.9, rank_in=3, rank_out=2)
        torch.manual_seed(1)
        for _ in range(9):
            x, y = torch.randn(20, 12), torch.randint(0, 13, (20,))
            nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert 16 in widths
    pairs = zip(aligned.parameters(), plain.parameters(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
