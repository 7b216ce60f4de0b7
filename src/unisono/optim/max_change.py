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

    Where c_i rate_i is the same for all layers, as it is while no layer is shortened and all rates
    are equal, one pass changes all parameters; that is found out on the device, too.

    Args:
        steps: Of each layer; all on one device.
        max_change: The longest change over all of them; 0: any.

    Returns:
        Whether the step was finite, and so was taken: a tensor without dimensions, on the device.
    """
    norms = _norms(steps)
    longest = tuple(step.max_change or torch.inf for step in steps)
    bounds = _constants(longest, norms.dtype, norms.device)
    rates = _beside(norms, [step.rate for step in steps])
    lengths = rates * norms
    finite = lengths.isfinite().all()
    factors = (bounds / lengths).clamp(max=1.0)
    total = torch.linalg.vector_norm(factors * lengths)
    factors = factors * ((max_change or torch.inf) / total).clamp(max=1.0)
    _move(steps, factors * rates, finite.logical_not())
    return finite


def clear(tensors: Sequence[Tensor], parameters: Sequence[Tensor], finite: Tensor) -> None:
    """Sets tensors to 0, whatever is in them, unless `finite`; then they are not even read.

    It is the first step of SGD with momentum, which sets momentum to gradient + weight_decay *
    parameter; here p - p, with the parameters as gradients and a weight decay of -1. With a rate
    of 0 the parameters stay as they are. Tensors that are not laid out as their parameters are
    read and written in any case.

    Args:
        tensors: Of the shapes of the parameters.
        parameters: One for each; they are finite.
        finite: Without dimensions, on the device.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}
    for tensor, parameter in zip(tensors, parameters, strict=True):
        if tensor.device != finite.device or not _are_laid_out_alike(tensor, parameter):
            tensor.masked_fill_(finite.logical_not().to(tensor.device), 0.0)
        else:
            alike.setdefault((tensor.dtype, tensor.device), []).append((tensor, parameter))
    for pairs in alike.values():
        beside = [parameter for _, parameter in pairs]
        torch._fused_sgd_(
            beside,
            beside,
            [tensor for tensor, _ in pairs],
            weight_decay=-1.0,
            momentum=1.0,
            lr=0.0,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=True,
            found_inf=finite.float(),
        )


def _are_laid_out_alike(a: Tensor, b: Tensor) -> bool:
    alike = (a.dtype, a.device, a.stride()) == (b.dtype, b.device, b.stride())
    return alike and a.is_contiguous()


def _move(steps: Sequence[LayerStep], rates: Tensor, stopped: Tensor) -> None:
    """Changes parameters by -rate * directions for each layer, unless `stopped`.

    A kernel has one rate, and one for a single layer keeps a part of a GPU busy. So there is one
    for all layers, which is skipped where their rates differ, and one for each, skipped elsewhere.
    """
    rates = rates.float() if rates.is_cuda else rates  # as the kernels want it
    parameters = [p for step in steps for p in step.parameters]
    directions = [d for step in steps for d in step.directions]
    differ = (rates != rates[0]).any()
    if len({p.dtype for p in parameters}) > 1:  # a kernel has one dtype, too
        differ = torch.ones_like(differ)
    else:
        _descend(parameters, directions, rates[0], skip=stopped | differ)
    skip = stopped | differ.logical_not()
    for step, rate in zip(steps, rates.unbind(), strict=True):
        _descend(step.parameters, step.directions, rate, skip=skip)


def _descend(
    parameters: list[Tensor], directions: list[Tensor], rate: Tensor, *, skip: Tensor
) -> None:
    torch._fused_sgd_(
        parameters,
        directions,
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=skip.float(),
    )


def _norms(steps: Sequence[LayerStep]) -> Tensor:
    """Returns |directions| of each step in float64; on a GPU in few launches."""
    directions = [d for step in steps for d in step.directions]
    if not directions[0].is_cuda:
        return torch.stack([_norm(step.directions) for step in steps])
    of = tuple(place for place, step in enumerate(steps) for _ in step.directions)
    return _sum_norms(directions, _indicator(of, len(steps), directions[0].device))


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


def _sum_norms(directions: list[Tensor], of: Tensor) -> Tensor:
    """Returns the 2-norm of each layer; float32 sums, which a GPU makes as trees, are good."""
    return (of @ torch.stack(torch._foreach_norm(directions)).double().square()).sqrt()


def _beside(tensor: Tensor, values: Sequence[float | Tensor]) -> Tensor:
    """Returns numbers as a tensor like another, without waiting for the device."""
    there = [value for value in values if isinstance(value, Tensor)]
    if there:
        return torch.stack(there).to(tensor.dtype)
    return torch.tensor(values, dtype=tensor.dtype).to(tensor.device, non_blocking=True)


def _norm(directions: Sequence[Tensor]) -> Tensor:
    """Returns |directions| in float64."""
    norms = [_norm_of_one(direction) for direction in directions]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _norm_of_one(direction: Tensor) -> Tensor:
    """Returns a 2-norm in float64; float32 sums are good along a row, not over a matrix."""
    if direction.dim() > 1:
        direction = torch.linalg.vector_norm(direction.flatten(1), dim=1)
    norm: Tensor = torch.linalg.vector_norm(direction, dtype=torch.float64)
    return norm
