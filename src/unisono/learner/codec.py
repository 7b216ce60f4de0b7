"""Nested state (of optimizers, schedulers, scalers) as plain data plus named tensors, and back.

Never pickle: what is kept can be read by anybody, and reading it runs no code.
"""

from __future__ import annotations

from typing import Any

import torch

from unisono.fabric import TensorVector
from unisono.strategies.base import Parcel

_PLAIN = (str, int, float, bool, type(None))


def encode(state: Any, tensors: dict[str, torch.Tensor], path: str = "") -> Any:
    """Plain data in which tensors are replaced by references into ``tensors``."""
    if isinstance(state, torch.Tensor):
        tensors[path] = state
        return {"tensor": path}
    if isinstance(state, dict):
        pairs = [
            [encode(k, tensors, f"{path}.{i}k"), encode(v, tensors, f"{path}.{k}")]
            for i, (k, v) in enumerate(state.items())
        ]
        return {"dict": pairs}
    if isinstance(state, (list, tuple)):
        items = [encode(v, tensors, f"{path}.{i}") for i, v in enumerate(state)]
        return {type(state).__name__ if type(state) in (list, tuple) else "list": items}
    if isinstance(state, _PLAIN):
        return state
    raise TypeError(f"{path or 'state'} is of type {type(state).__name__}, which cannot be kept")


def decode(plain: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The inverse of ``encode``."""
    if not isinstance(plain, dict):
        return plain
    ((kind, value),) = plain.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {decode(k, tensors): decode(v, tensors) for k, v in value}
    items = [decode(v, tensors) for v in value]
    return tuple(items) if kind == "tuple" else items


def to_parcel(name: str, state: Any) -> Parcel:
    """State that can travel over the fabric."""
    tensors: dict[str, torch.Tensor] = {}
    plain = encode(state, tensors, name)
    shapes = {key: list(tensor.shape) for key, tensor in tensors.items()}
    vectors = {
        key: TensorVector(tensor.detach().cpu().contiguous().reshape(-1))
        for key, tensor in tensors.items()
    }
    return Parcel({name: plain, f"{name}.shapes": shapes}, dict(vectors))


def from_parcel(name: str, parcel: Parcel) -> Any:
    """The inverse of ``to_parcel``."""
    shapes = parcel.plain[f"{name}.shapes"]
    tensors = {}
    for key, shape in shapes.items():
        vector = parcel.vectors[key]
        assert isinstance(vector, TensorVector)
        tensors[key] = vector.tensor.reshape(shape)
    return decode(parcel.plain[name], tensors)
