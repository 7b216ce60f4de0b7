"""On a GPU: the same numbers, and a step that waits for nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from unisono.optim import NaturalGradientSGD

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def trained(device: str, bad: int = -1) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 5)).double().to(device)
    optimizer = NaturalGradientSGD(model, 0.2, momentum=0.9)
    for step in range(16):
        x = torch.randn(40, 12, generator=torch.Generator().manual_seed(step)).double()
        if step == bad:
            x[3, 3] = torch.nan
        y = (x[:, 0] > 0).long().to(device)
        functional.cross_entropy(model(x.to(device)), y).backward()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        optimizer.zero_grad()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("bad", [-1, 5])
def test_the_same_on_both_devices_and_nobody_waits(bad: int) -> None:
    pairs = zip(trained("cuda", bad), trained("cpu", bad), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-8) for a, b in pairs)


def test_backward_waits_only_when_estimates_are_updated() -> None:
    model = nn.Linear(12, 30).cuda()
    optimizer = NaturalGradientSGD(model, 0.2)
    x = torch.randn(40, 12, device="cuda")
    for step in range(20):
        updating = step <= 10 or (step - 10) % 4 == 0
        torch.cuda.set_sync_debug_mode("default" if updating else "error")
        try:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
