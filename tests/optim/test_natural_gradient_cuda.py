"""Online natural gradient on a CUDA device: the numbers of the CPU, and no needless waiting."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unisono.optim import OnlineNaturalGradient

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def stream(rows: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    mixing = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    mixing *= (1.0 + torch.arange(dim).unsqueeze(1)) ** -0.8
    scales = [0.0] * 2 + [1.0] * 6 + [1e3] * 4 + [1.0] * 6
    noise = torch.randn(len(scales), rows, dim, generator=generator, dtype=torch.float64)
    return [scale * (one @ mixing).to(dtype) for scale, one in zip(scales, noise, strict=True)]


@pytest.mark.parametrize("alpha", [0.0, 4.0])
@pytest.mark.parametrize("rows", [8, 200])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 2e-5)])
def test_agrees_with_the_cpu(rows: int, alpha: float, dtype: torch.dtype, tolerance: float) -> None:
    host = OnlineNaturalGradient(rank=20, update_period=4, alpha=alpha)
    device = OnlineNaturalGradient(rank=20, update_period=4, alpha=alpha)
    for x in stream(rows, 100, dtype):
        expected, expected_scale = host.precondition(x.double())
        result, scale = device.precondition(x.cuda())
        assert result.is_cuda
        assert scale.is_cuda
        error = (scale.cpu() * result.cpu() - expected_scale * expected).norm()
        assert error <= tolerance * x.norm()


def test_only_an_update_waits_for_the_device() -> None:
    natural_gradient = OnlineNaturalGradient(rank=20, update_period=4)
    minibatches = [x.cuda() for x in stream(200, 100, torch.float32)[2:]]
    for x in minibatches[:11]:
        natural_gradient.precondition(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for x in minibatches[11:14]:
            natural_gradient.precondition(x)
        with pytest.raises(RuntimeError, match="synchroniz"):
            natural_gradient.precondition(minibatches[14])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_state_moves_between_devices() -> None:
    host, device = (OnlineNaturalGradient(rank=20) for _ in range(2))
    minibatches = stream(200, 100, torch.float64)[2:]
    for x in minibatches[:5]:
        host.precondition(x)
    device.load_state_dict(host.state_dict())
    for x in minibatches[5:]:
        expected, _ = host.precondition(x)
        rows, _ = device.precondition(x.cuda())
        torch.testing.assert_close(rows.cpu(), expected, rtol=1e-6, atol=1e-6)
