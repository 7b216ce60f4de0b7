"""The user's optimizers, rebuilt on a parameter server's shard."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from unisono.errors import UserError
from unisono.fabric import TensorVector, Vector
from unisono.learner.state_codec import from_bundle, to_bundle
from unisono.learner.storage import is_missing
from unisono.optim import NaturalGradientSGD
from unisono.strategies.base import StateBundle

_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
)
"""Elementwise optimizers, for which a tensor may be cut anywhere."""


class SliceUpdater:
    """Steps on ``values``, which are the parameters number ``start`` to ``start + len(values)``.

    Each tensor that lies in the slice as a whole keeps its shape; of one that does not, its part is
    flat. Both are views of ``values``, so a step changes these. The groups are those of the user's
    optimizers, with their options.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        parameters: Sequence[torch.Tensor],
        values: TensorVector,
        start: int,
    ) -> None:
        self._spans: list[tuple[int, int, torch.Tensor]] = []
        self._optimizers: list[Optimizer] = []
        places: dict[int, int] = {}
        place = 0
        for parameter in parameters:
            places[id(parameter)] = place
            place += parameter.numel()
        for optimizer in optimizers:
            groups = []
            for group in optimizer.param_groups:
                pieces = []
                for parameter in group["params"]:
                    if parameter.requires_grad and id(parameter) in places:
                        first = places[id(parameter)] - start
                        piece = self._piece(parameter, first, values)
                        pieces += [] if piece is None else [piece]
                options = {key: value for key, value in group.items() if key != "params"}
                groups.append({**options, "params": pieces})
            whole = all(
                p.dim() == 0 or _is_whole(p, parameters) for g in groups for p in g["params"]
            )
            rebuilt = _rebuild(optimizer, groups)
            if not (whole or isinstance(rebuilt, _ELEMENTWISE)):
                raise UserError(
                    f"{type(optimizer).__name__} may need whole tensors and a shard cuts them: "
                    "use shards=1"
                )
            self._optimizers.append(rebuilt)

    def _piece(
        self, parameter: torch.Tensor, first: int, values: TensorVector
    ) -> torch.nn.Parameter | None:
        low, high = max(first, 0), min(first + parameter.numel(), len(values))
        if low >= high:
            return None
        flat = values.tensor[low:high]
        shape = parameter.shape if high - low == parameter.numel() else flat.shape
        piece = torch.nn.Parameter(flat.view(shape))
        self._spans.append((low, high, piece))
        return piece

    def step(self, gradient: Vector, rates: Sequence[float]) -> None:
        """Takes a step; a gradient that is -0 everywhere is missing, as in the model."""
        assert isinstance(gradient, TensorVector)
        for low, high, piece in self._spans:
            part = gradient.tensor[low:high]
            piece.grad = None if is_missing(part) else part.view(piece.shape)
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        for optimizer in self._optimizers:
            optimizer.step()
        for _, _, piece in self._spans:
            piece.grad = None

    def state(self) -> StateBundle:
        bundle = to_bundle("optimizers", [optimizer.state_dict() for optimizer in self._optimizers])
        return StateBundle(bundle.plain, {name: v.copy() for name, v in bundle.vectors.items()})

    def load_state(self, bundle: StateBundle) -> None:
        states = from_bundle("optimizers", bundle)
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)


def _is_whole(piece: torch.Tensor, parameters: Sequence[torch.Tensor]) -> bool:
    return any(piece.shape == parameter.shape for parameter in parameters)


def _rebuild(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Another optimizer of the same class, with the same options.

    The gradients of ng-sgd are preconditioned when they come, so its steps here are those of SGD;
    the bounds of its steps hold for whole layers, and have no effect here.
    """
    if isinstance(optimizer, NaturalGradientSGD):
        return torch.optim.SGD(groups)
    known = inspect.signature(type(optimizer).__init__).parameters
    arguments = {key: value for key, value in optimizer.defaults.items() if key in known}
    try:
        return type(optimizer)(groups, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        name = type(optimizer).__name__
        raise UserError(f"{name} cannot be rebuilt on a server's shard: {error}") from None
