"""The loss of minibatches, compiled by torch where that pays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unisono.output import tell

WORTH_STEPS = 30_000
"""Compiling takes some 20 s, and saves less than a millisecond a step."""

Loss = Callable[[Tensor, Tensor], Tensor]


class CompiledLoss:
    """The loss of a model, compiled for the shape of the first minibatch.

    Other shapes, the last of an epoch for example, are computed as ever, since compiling takes
    seconds. If it fails, for want of a compiler for example, all of them are.
    """

    def __init__(self, loss: Loss, model: nn.Module) -> None:
        """Compiles nothing yet."""
        self._plain, self._model = loss, model
        self._compiled: Loss | None = None
        self._shape: torch.Size | None = None

    def __call__(self, x: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of a minibatch."""
        if self._shape is None:
            self._shape = x.shape
            self._compiled = self._compile(x, targets)
        if self._compiled is None or x.shape != self._shape:
            return self._plain(x, targets)
        return self._compiled(x, targets)

    def _compile(self, x: Tensor, targets: Tensor) -> Loss | None:
        """Compiles forward and backward pass, and leaves the model as it was."""
        # In this process: learners that share a machine would each start one for every core.
        alone: dict[str, Any] = {"compile_threads": 1}
        compiled: Loss = torch.compile(self._plain, dynamic=False, options=alone)
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        devices = [x.device] if x.is_cuda else []
        try:
            with torch.random.fork_rng(devices), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.autograd.grad(compiled(x, targets), parameters, allow_unused=True)
        except RuntimeError as error:
            tell(f"unisono: the model is not compiled, and steps take longer: {_first(error)}")
            return None
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
        return compiled


def _first(error: RuntimeError) -> str:
    """What is wrong, without the advice that follows."""
    return str(error).strip().split("\n")[0]
