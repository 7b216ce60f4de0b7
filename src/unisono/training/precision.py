"""In what numbers a learner computes. Parameters, gradients and optimizer stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import nn

from unisono.config import ComputePrecision
from unisono.errors import UserError
from unisono.models.lstm import RecurrentModel


def check_precision(wanted: ComputePrecision, device: torch.device) -> None:
    """Refuses what the device cannot do.

    Raises:
        UserError: It cannot.
    """
    if wanted is ComputePrecision.TF32 and device.type != "cuda":
        raise UserError(
            "precision is tf32, which only GPUs have, but the learners compute on "
            f"{device.type}; use --set precision=auto"
        )


def choose_precision(
    wanted: ComputePrecision, device: torch.device, model: nn.Module
) -> ComputePrecision:
    """What a learner computes in, with `auto` decided.

    Recurrent models on a CPU stay in float32: torch has no fast kernels for their time steps there.
    """
    check_precision(wanted, device)
    if wanted is not ComputePrecision.AUTO:
        return wanted
    slow = device.type == "cpu" and is_recurrent(model)
    fast = has_bfloat16(device) and not slow
    return ComputePrecision.BFLOAT16 if fast else ComputePrecision.FLOAT32


def is_recurrent(model: nn.Module) -> bool:
    """Whether some part of the model goes from frame to frame."""
    return any(isinstance(part, RecurrentModel | nn.RNNBase) for part in model.modules())


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for products of bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    found = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(found)


def autocast(precision: ComputePrecision, device: torch.device) -> AbstractContextManager[None]:
    """What forward pass and loss are computed in; backward follows by itself.

    For tf32 it sets the precision of all float32 products of this process.
    """
    if precision is ComputePrecision.TF32:
        torch.set_float32_matmul_precision("high")
    enabled = precision is ComputePrecision.BFLOAT16
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)
