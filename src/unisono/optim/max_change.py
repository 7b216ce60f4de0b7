"""Steps of bounded length, taken only where they are finite, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Move:
    """What one layer wants: parameters -= rate * directions.

    Attributes:
        parameters: Its parameters.
        directions: One for each, of the same shape.
        rate: The learning rate.
        max_change: The longest change, as the 2-norm over all its parameters; 0: any.
    """

    parameters: list[Tensor]
    directions: list[Tensor]
    rate: float
    max_change: float


def take(moves: Sequence[Move], max_change: float) -> Tensor:
    """Takes one step: all moves, shortened where they are too long; or none of them.

    Let L_i = rate_i |directions_i| be the length of move i, and m_i its max_change. Each layer
    is shortened first, then all of them together:

        c_i = min(1, m_i / L_i),
        c   = min(1, max_change / sqrt(sum_i (c_i L_i)^2)),
        parameters_i -= c c_i rate_i directions_i.

    If any L_i is not finite, nothing changes. All of this is computed on the device; lengths in
    float64, from float32 sums along rows (on a GPU: as trees).

    Args:
        moves: Of each layer; all on one device.
        max_change: The longest change over all of them; 0: any.

    Returns:
        Whether the step was finite, and so was taken: a tensor without dimensions, on the device.
    """
    lengths = _lengths(moves)
    bounds = _beside(lengths, [move.max_change or torch.inf for move in moves])
    rates = _beside(lengths, [move.rate for move in moves])
    return _take([(m.parameters, m.directions) for m in moves], lengths, rates, bounds, max_change)


class BoundedStep:
    """`take` for the same layers step after step, with everything on the device.

    Nothing is sent there in a step, so that it can be captured in a CUDA graph. `rates` may be
    written between two steps.
    """

    def __init__(
        self,
        layers: Sequence[Sequence[Tensor]],
        rates: Sequence[float],
        max_changes: Sequence[float],
        max_change: float,
    ) -> None:
        """Takes no step yet.

        Args:
            layers: The parameters of each.
            rates: The learning rate of each.
            max_changes: The longest change of each; 0: any.
            max_change: The longest change over all of them; 0: any.
        """
        device = layers[0][0].device
        self._layers = [list(layer) for layer in layers]
        of = [place for place, layer in enumerate(layers) for _ in layer]
        self._of = _indicator(of, len(layers)).to(device)
        self.rates = torch.tensor(rates, dtype=torch.float64, device=device)
        bounds = [bound or torch.inf for bound in max_changes]
        self._bounds = torch.tensor(bounds, dtype=torch.float64, device=device)
        self._max_change = max_change

    def take(self, directions: Sequence[Sequence[Tensor]]) -> Tensor:
        """As `take`; `directions` has one for each parameter of each layer."""
        lengths = self.rates * _norms([d for layer in directions for d in layer], self._of)
        pairs = [(p, list(d)) for p, d in zip(self._layers, directions, strict=True)]
        return _take(pairs, lengths, self.rates, self._bounds, self._max_change)


def _take(
    layers: Sequence[tuple[list[Tensor], list[Tensor]]],
    lengths: Tensor,
    rates: Tensor,
    bounds: Tensor,
    max_change: float,
) -> Tensor:
    finite = lengths.isfinite().all()
    factors = (bounds / lengths).clamp(max=1.0)
    total = torch.linalg.vector_norm(factors * lengths)
    factors = factors * ((max_change or torch.inf) / total).clamp(max=1.0)
    not_finite = finite.logical_not().float()
    rates = factors * rates
    shortened = (rates.float() if rates.is_cuda else rates).unbind()  # as the kernels want it
    for (parameters, directions), rate in zip(layers, shortened, strict=True):
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
            found_inf=not_finite,
        )
    return finite


def _lengths(moves: Sequence[Move]) -> Tensor:
    """Returns rate * |directions| of each move in float64; on a GPU in few launches."""
    directions = [d for move in moves for d in move.directions]
    if not directions[0].is_cuda:
        return torch.stack([_length(move) for move in moves])
    of = [place for place, move in enumerate(moves) for _ in move.directions]
    belongs = _indicator(of, len(moves)).to(directions[0].device, non_blocking=True)
    norms = _norms(directions, belongs)
    return _beside(norms, [move.rate for move in moves]) * norms


def _indicator(of: list[int], layers: int) -> Tensor:
    """Returns which tensors are which layer's, layers x tensors."""
    return (torch.tensor(of) == torch.arange(layers).unsqueeze(1)).double()


def _norms(directions: list[Tensor], of: Tensor) -> Tensor:
    """Returns the 2-norm of each layer; float32 sums, which a GPU makes as trees, are good."""
    return (of @ torch.stack(torch._foreach_norm(directions)).double().square()).sqrt()


def _beside(tensor: Tensor, values: list[float]) -> Tensor:
    """Returns numbers as a tensor like another; nobody waits for the copy."""
    return torch.tensor(values, dtype=tensor.dtype).to(tensor.device, non_blocking=True)


def _length(move: Move) -> Tensor:
    """Returns rate * |directions| in float64."""
    lengths = [_norm(direction) for direction in move.directions]
    length: Tensor = move.rate * torch.linalg.vector_norm(torch.stack(lengths))
    return length


def _norm(direction: Tensor) -> Tensor:
    """Returns a 2-norm in float64; float32 sums are good along a row, not over a matrix."""
    if direction.dim() > 1:
        direction = torch.linalg.vector_norm(direction.flatten(1), dim=1)
    norm: Tensor = torch.linalg.vector_norm(direction, dtype=torch.float64)
    return norm
