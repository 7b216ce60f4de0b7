"""Steps of bounded length, taken only where they are finite, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LayerStep:
    """The step of one layer before any bound: parameters -= rate * directions.

    Attributes:
        parameters: Its parameters.
        directions: One for each, of the same shape.
        rate: The learning rate; as a tensor where the step is captured in a CUDA graph.
        max_change: The longest change, as the 2-norm over all its parameters; 0: any.
    """

    parameters: list[Tensor]
    directions: list[Tensor]
    rate: float | Tensor
    max_change: float


def take_step(steps: Sequence[LayerStep], max_change: float) -> Tensor:
    """Takes one step of all layers, each shortened where it is too long; or none.

    Let L_i = rate_i |directions_i| be the length of step i, and m_i its max_change. Each layer
    is shortened first, then all of them together:

        c_i = min(1, m_i / L_i),
        c   = min(1, max_change / sqrt(sum_i (c_i L_i)^2)),
        parameters_i -= c c_i rate_i directions_i.

    If any L_i is not finite, nothing changes. All of this is computed on the device; lengths in
    float64, from float32 sums along rows (on a GPU: as trees).

    Args:
        steps: Of each layer; all on one device.
        max_change: The longest change over all of them; 0: any.

    Returns:
        Whether the step was finite, and so was taken: a tensor without dimensions, on the device.
    """
    lengths = _lengths(steps)
    longest = tuple(step.max_change or torch.inf for step in steps)
    bounds = _constants(longest, lengths.dtype, lengths.device)
    rates = _beside(lengths, [step.rate for step in steps])
    finite = lengths.isfinite().all()
    factors = (bounds / lengths).clamp(max=1.0)
    total = torch.linalg.vector_norm(factors * lengths)
    factors = factors * ((max_change or torch.inf) / total).clamp(max=1.0)
    not_finite = finite.logical_not().float()
    rates = factors * rates
    shortened = (rates.float() if rates.is_cuda else rates).unbind()  # as the kernels want it
    for step, rate in zip(steps, shortened, strict=True):
        torch._fused_sgd_(
            step.parameters,
            step.directions,
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            found_inf=not_finite,
        )
    return finite


def _lengths(steps: Sequence[LayerStep]) -> Tensor:
    """Returns rate * |directions| of each step in float64; on a GPU in few launches."""
    directions = [d for step in steps for d in step.directions]
    if not directions[0].is_cuda:
        return torch.stack([_length(step) for step in steps])
    of = tuple(place for place, step in enumerate(steps) for _ in step.directions)
    norms = _norms(directions, _indicator(of, len(steps), directions[0].device))
    return _beside(norms, [step.rate for step in steps]) * norms


# A CUDA graph cannot copy from the host, so what never changes stays on the device.
@lru_cache(maxsize=64)
def _indicator(of: tuple[int, ...], layers: int, device: torch.device) -> Tensor:
    """Returns which tensors are which layer's, layers x tensors."""
    found = (torch.tensor(of) == torch.arange(layers).unsqueeze(1)).double()
    return found.to(device, non_blocking=True)


@lru_cache(maxsize=64)
def _constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns numbers as a tensor."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def _norms(directions: list[Tensor], of: Tensor) -> Tensor:
    """Returns the 2-norm of each layer; float32 sums, which a GPU makes as trees, are good."""
    return (of @ torch.stack(torch._foreach_norm(directions)).double().square()).sqrt()


def _beside(tensor: Tensor, values: Sequence[float | Tensor]) -> Tensor:
    """Returns numbers as a tensor like another, without waiting for the device."""
    there = [value for value in values if isinstance(value, Tensor)]
    if there:
        return torch.stack(there).to(tensor.dtype)
    return torch.tensor(values, dtype=tensor.dtype).to(tensor.device, non_blocking=True)


def _length(step: LayerStep) -> Tensor:
    """Returns rate * |directions| in float64."""
    lengths = [_norm(direction) for direction in step.directions]
    length: Tensor = step.rate * torch.linalg.vector_norm(torch.stack(lengths))
    return length


def _norm(direction: Tensor) -> Tensor:
    """Returns a 2-norm in float64; float32 sums are good along a row, not over a matrix."""
    if direction.dim() > 1:
        direction = torch.linalg.vector_norm(direction.flatten(1), dim=1)
    norm: Tensor = torch.linalg.vector_norm(direction, dtype=torch.float64)
    return norm
