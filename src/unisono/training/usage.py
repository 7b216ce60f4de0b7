"""What a learner computes and how much memory it takes, for the summary of a run."""

from __future__ import annotations

import resource

import torch
from torch import nn


def operations(model: nn.Module, frames: int) -> int:
    """Floating-point operations of training on so many frames in matrix products.

    Each weight is multiplied and added three times a frame: in the forward pass, for the gradient
    of the weight, and for that of the layer's input. Everything else is small beside that.
    """
    weights = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    return 6 * weights * frames


def peak_memory(device: torch.device) -> int:
    """The most bytes so far: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
