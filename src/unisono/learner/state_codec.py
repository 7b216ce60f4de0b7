"""Nested state (of optimizers, schedulers, scalers) as plain data plus named tensors, and back.

Never pickle: what is kept can be read by anybody, and reading it runs no code.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import torch

from unisono.fabric import TensorVector
from unisono.strategies.base import StateBundle

_PLAIN = (str, int, float, bool, type(None))


def encode(state: Any, tensors: dict[str, torch.Tensor], path: str = "") -> Any:
    """Plain data in which tensors are replaced by references into ``tensors``.

    Raises ``TypeError`` for what is neither; the text says where it is.
    """
    if isinstance(state, torch.Tensor):
        name = path if path not in tensors else f"{path}#{len(tensors)}"
        tensors[name] = state
        return {"tensor": name}
    if isinstance(state, dict):
        pairs = [
            [encode(k, tensors, f"{path}.{i}k"), encode(v, tensors, f"{path}.{k}")]
            for i, (k, v) in enumerate(state.items())
        ]
        return {"counter" if isinstance(state, Counter) else "dict": pairs}
    if isinstance(state, list | tuple):
        items = [encode(v, tensors, f"{path}.{i}") for i, v in enumerate(state)]
        return {"tuple" if isinstance(state, tuple) else "list": items}
    if isinstance(state, np.generic):
        state = state.item()
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
    if kind in ("dict", "counter"):
        pairs = {decode(k, tensors): decode(v, tensors) for k, v in value}
        return Counter(pairs) if kind == "counter" else pairs
    items = [decode(v, tensors) for v in value]
    return tuple(items) if kind == "tuple" else items


def to_bundle(name: str, state: Any) -> StateBundle:
    """State for the fabric; its structure is sent as a vector, too, since it may be long."""
    tensors: dict[str, torch.Tensor] = {}
    plain = encode(state, tensors)
    shapes = [[key, list(tensor.shape)] for key, tensor in tensors.items()]
    text = bytearray(json.dumps({"plain": plain, "shapes": shapes}).encode())
    bundle = StateBundle()
    bundle.vectors[name] = TensorVector(torch.frombuffer(text, dtype=torch.uint8))
    for place, tensor in enumerate(tensors.values()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        bundle.vectors[f"{name}.{place}"] = TensorVector(flat)
    return bundle


def from_bundle(name: str, bundle: StateBundle) -> Any:
    """The inverse of ``to_bundle``."""
    head = json.loads(_tensor(bundle, name).numpy().tobytes())
    tensors = {
        key: _tensor(bundle, f"{name}.{place}").reshape(shape)
        for place, (key, shape) in enumerate(head["shapes"])
    }
    return decode(head["plain"], tensors)


def _tensor(bundle: StateBundle, name: str) -> torch.Tensor:
    vector = bundle.vectors[name]
    assert isinstance(vector, TensorVector)
    return vector.tensor
