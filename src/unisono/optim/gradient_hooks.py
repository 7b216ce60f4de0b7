"""Gradient hooks: a layer's weight gradient computed from rows, in place of autograd."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.hooks import RemovableHandle

from unisono.optim.preconditioner import Gradients
from unisono.optim.rows import Affine, input_rows, output_rows

Rows = tuple[list[Tensor], list[Tensor]]
"""Views of the inputs of a layer, and of its output derivatives."""
ComputeGradients = Callable[[Tensor, list[Tensor], list[Tensor]], Gradients]
"""From the weight, views of its input rows, and views of its output derivatives."""

NO_PASS = -1

_hooks: weakref.WeakKeyDictionary[nn.Module, GradientHook] = weakref.WeakKeyDictionary()
"""The hook of each module that has one: a later one replaces it."""


class GradientHook:
    """Has the gradient of one weight (and bias) computed by a function of rows.

    While the layer computes, its weight and bias do not require gradients, so autograd keeps and
    computes nothing for them; the layer's output, and the gradient of its input, are its own.
    Two nodes of the graph stand in for what was left out:

        weight, bias --> ComputeGradient --> token --.
                                                     v
        x --> the layer --> output -------------> RecordRows --> output

    In the backward pass RecordRows keeps references to x and to the output's derivative, which it
    passes on. ComputeGradient runs, as any node does, when every RecordRows that used the token
    has run; so a layer that was applied at many time steps has all its rows together. A pass that
    never comes to ComputeGradient, since other derivatives were asked for or it failed, leaves its
    rows behind, and the next forward pass drops them; a pass within a pass (a checkpoint) has rows
    of its own.

    What ComputeGradient returns is accumulated by autograd into `.grad`: gradient accumulation,
    GradScaler, hooks on parameters, `torch.autograd.grad` and code that replaces `.grad` after the
    backward pass find what they always find. It cannot be differentiated a second time.

    A copy of the model has no hook, and the hook ends with the object that `compute` is a
    method of.

    Attributes:
        bias: The bias, if there is one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, compute: ComputeGradients) -> None:
        """Belongs to no module yet.

        Args:
            weight: The weight; `add` adds the modules that have it.
            bias: The bias, if there is one.
            compute: A method that computes their gradients.
        """
        self.bias = bias
        self._weight = weight
        self._compute = weakref.WeakMethod(compute)
        self._handles: list[RemovableHandle] = []
        self._excluded: list[Tensor] = []
        self._token: Tensor | None = None
        self._rows: dict[int, Rows] = {}

    def add(self, module: Affine) -> None:
        """Adds a module that has the weight and the bias."""
        if module in _hooks:
            _hooks[module].remove()
        _hooks[module] = self
        after = {"with_kwargs": True, "always_call": True}
        self._handles += [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            # Before the hooks of others, which may change the output.
            module.register_forward_hook(self._after, prepend=True, **after),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._token = None
        self._rows.clear()

    def record(self, x: Tensor, derivative: Tensor) -> None:
        """Keeps rows, and the derivatives of their outputs."""
        inputs, derivatives = self._rows.setdefault(_backward_pass(), ([], []))
        inputs.append(x)
        derivatives.append(derivative)

    def __deepcopy__(self, memo: dict[int, Any]) -> GradientHook:
        """Hooks are copied with a model; they find that the weight is another one's."""
        return self

    def __reduce__(self) -> tuple[Callable[[], GradientHook], tuple[()]]:
        """Hooks are pickled with a model; they come back as hooks that have ended."""
        return _ended, ()

    def _before(self, module: Affine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        compute, weight = self._compute(), self._weight
        if compute is None:
            self.remove()
            return
        if module.weight is not weight or not weight.requires_grad or not torch.is_grad_enabled():
            return
        if _backward_pass() == NO_PASS:
            self._rows.clear()
        token = self._token
        if token is None or token.dtype != weight.dtype or token.device != weight.device:
            self._token = _ComputeGradient.apply(  # type: ignore[no-untyped-call]
                self, compute, weight, self.bias
            )
        self._excluded = [p for p in (weight, self.bias) if p is not None and p.requires_grad]
        for parameter in self._excluded:
            parameter.requires_grad_(False)

    def _after(
        self, module: Affine, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor | None
    ) -> Tensor | None:
        excluded, self._excluded = self._excluded, []
        for parameter in excluded:
            parameter.requires_grad_(True)
        if not excluded or output is None:
            return None
        x = args[0] if args else kwargs["input"]
        recorded: Tensor = _RecordRows.apply(  # type: ignore[no-untyped-call]
            output, self._token, x.detach(), self, module
        )
        return recorded

    def take_rows(self) -> Rows:
        """Returns the rows of the backward pass that is under way, and forgets them."""
        self._token = None
        return self._rows.pop(_backward_pass(), ([], []))


def _backward_pass() -> int:
    """Returns the number of the backward pass that is under way."""
    number: int = torch._C._current_graph_task_id()
    return number


class _Ended:
    """The owner of a hook that has ended, since it is gone as soon as it is made."""

    def compute(self, weight: Tensor, inputs: list[Tensor], derivatives: list[Tensor]) -> Gradients:
        raise NotImplementedError


def _ended() -> GradientHook:
    return GradientHook(torch.empty(0), None, _Ended().compute)


class _RecordRows(torch.autograd.Function):
    """Records rows and derivatives in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, token: Tensor, x: Tensor, hook: GradientHook, module: Affine
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.hook, ctx.module = hook, module
        if not output._is_view():
            ctx.mark_dirty(output)  # so that the next layer may work in place, as it might before
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, derivative: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        ctx.hook.record(input_rows(ctx.module, x), output_rows(ctx.module, derivative))
        return derivative, None, None, None, None


class _ComputeGradient(torch.autograd.Function):
    """Computes the gradients when all rows are recorded."""

    @staticmethod
    def forward(
        ctx: Any, hook: GradientHook, compute: ComputeGradients, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.hook, ctx.compute, ctx.weight = hook, compute, weight
        return weight.new_empty(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, derivatives = ctx.hook.take_rows()
        return None, None, *ctx.compute(ctx.weight, inputs, derivatives)
