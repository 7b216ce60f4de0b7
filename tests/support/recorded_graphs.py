"""CUDA graphs as they behave, on a CPU: what work does is recorded, undone, and done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unisono.learner.cuda_graphs import CudaGraphs, Work


class RecordedGraphs(CudaGraphs):
    """Like a CUDA graph, a capture changes nothing, and work that waits for the device fails.

    A replay computes the same operations on the same memory.
    """

    def can_capture(self, tensors: Sequence[Tensor]) -> bool:
        return True

    def capture(self, work: Work) -> Work:
        recorder = _Recorder()
        random = torch.get_rng_state()
        try:
            with recorder:
                work()
        finally:
            recorder.undo()
            torch.set_rng_state(random)
        return recorder.replay


class _Recorder(TorchDispatchMode):
    """Notes each operation, its arguments, its results, and what it overwrote."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Callable[..., Any], Any, Any, list[Tensor]]] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                self._before += [(t, t.clone()) for t in _tensors(value)]
        out = func(*args, **kwargs)
        self._calls.append((func, args, kwargs, _tensors(out)))
        return out

    def undo(self) -> None:
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, results in self._calls:
                for result, again in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                    if again.data_ptr() != result.data_ptr():
                        result.copy_(again)


def _tensors(out: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
