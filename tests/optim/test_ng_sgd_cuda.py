"""On a GPU: the same numbers, and a step that waits for nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from unisono.optim import NaturalGradientSGD
from unisono.optim.device_preconditioner import CAPTURE_AFTER, DevicePreconditioner
from unisono.optim.exact_preconditioner import ExactPreconditioner

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
        captures = step == CAPTURE_AFTER - 1
        torch.cuda.set_sync_debug_mode("default" if captures else "error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        optimizer.zero_grad()
    kind = DevicePreconditioner if device == "cuda" else ExactPreconditioner
    assert all(isinstance(used, kind) for used in optimizer._preconditioners.values())
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("bad", [-1, 5])
def test_both_devices_agree_and_a_step_does_not_wait(bad: int) -> None:
    pairs = zip(trained("cuda", bad), trained("cpu", bad), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)


def test_nothing_waits_after_the_first_minibatch_and_the_captures() -> None:
    model = nn.Linear(12, 30).cuda()
    optimizer = NaturalGradientSGD(model, 0.2)
    x = torch.randn(40, 12, device="cuda")
    (used,) = optimizer._preconditioners.values()
    for step in range(30):
        due = len(used._graphs)  # type: ignore[attr-defined]
        torch.cuda.set_sync_debug_mode("default" if step == 0 else "error")
        try:
            model(x[: 40 if step % 7 else 24]).square().mean().backward()
            torch.cuda.set_sync_debug_mode("default" if due < 5 else "error")
            optimizer.step()
            optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(used._graphs) == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(("narrow", "steps", "tolerance"), [(False, 60, 1e-3), (True, 20, 0.05)])
def test_models_on_a_gpu_learn_the_same(narrow: bool, steps: int, tolerance: float) -> None:
    found = {}
    for device in ("cuda", "cpu"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU())
        model.append(nn.Linear(50, 7)).to(device)
        optimizer = NaturalGradientSGD(model, 0.1, momentum=0.9)
        for step in range(steps):
            rows = 64 if (step + 1) % 10 else 30
            x = torch.randn(rows, 13, generator=torch.Generator().manual_seed(step)).to(device)
            y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0)
            with torch.autocast(device, torch.bfloat16, enabled=narrow):
                functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 40:
                optimizer.load_state_dict(optimizer.state_dict())
        found[device] = torch.cat([p.detach().cpu().flatten() for p in model.parameters()])
    off = (found["cuda"] - found["cpu"]).norm() / found["cpu"].norm()
    assert off < tolerance
