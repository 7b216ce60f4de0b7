"""Taps: a layer's weight gradient, taken over from autograd and made from rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from unisono.optim.rows import Affine, input_rows, output_rows

Gradients = tuple[Tensor, Tensor | None]
"""Of the weight, and of the bias where there is one."""
Rows = tuple[list[Tensor], list[Tensor]]
"""Views of the inputs of a layer, and of its output derivatives."""
MakeGradients = Callable[[Tensor, list[Tensor], list[Tensor]], Gradients]
"""From the weight, views of its input rows, and views of its output derivatives."""

NO_PASS = -1

_owners: weakref.WeakKeyDictionary[nn.Module, Tap] = weakref.WeakKeyDictionary()
"""The tap of each module that has one: whoever comes last takes over."""


class Tap:
    """Has the gradient of one weight (and bias) made by a function of rows.

    While the layer computes, its weight and bias do not require gradients, so autograd keeps and
    computes nothing for them; the layer's output, and the gradient of its input, are its own.
    Two nodes of the graph stand in for what was taken away:

        weight, bias --> Collect --> token --.
                                             v
        x --> the layer --> output --------> Watch --> output

    In the backward pass Watch keeps references to x and to the output's derivative, which it
    hands on. Collect waits, as any node does, until every Watch that used the token has run; so
    a layer that was applied at many time steps shows its rows all at once. A pass that never
    comes to Collect, since it wanted other derivatives or failed, leaves its rows behind, and
    the next forward pass drops them; a pass within a pass (a checkpoint) has rows of its own.

    What Collect returns is accumulated by autograd into `.grad`: gradient accumulation,
    GradScaler, hooks on parameters, `torch.autograd.grad` and whoever replaces `.grad` after the
    backward pass find what they always find. It cannot be differentiated a second time.

    A copy of the model is not tapped, and the tap ends with the object that `make` is a
    method of.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        make: MakeGradients,
    ) -> None:
        """Taps nothing yet.

        Args:
            weight: The weight; `take` adds the modules that have it.
            bias: The bias, if there is one.
            make: A method that makes their gradients.
        """
        self._weight = weight
        self._bias = bias
        self._make = weakref.WeakMethod(make)
        self._handles: list[RemovableHandle] = []
        self._quiet: list[Tensor] = []
        self._token: Tensor | None = None
        self._rows: dict[int, Rows] = {}

    def take(self, module: Affine) -> None:
        """Adds a module that has the weight and the bias."""
        if module in _owners:
            _owners[module].remove()
        _owners[module] = self
        after = {"with_kwargs": True, "always_call": True}
        self._handles += [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            # Before the hooks of others, which may change the output.
            module.register_forward_hook(self._after, prepend=True, **after),
        ]

    def remove(self) -> None:
        """Leaves the modules as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._token = None
        self._rows.clear()

    @property
    def alive(self) -> bool:
        """Whether there is anybody to make gradients."""
        return self._make() is not None

    @property
    def wanted(self) -> bool:
        """Whether the weight is to have a gradient."""
        return self._weight.requires_grad

    def token(self) -> Tensor:
        """Returns what every node that watches this weight at work must be given."""
        if _backward_pass() == NO_PASS:
            self._rows.clear()
        token, weight = self._token, self._weight
        if token is None or token.dtype != weight.dtype or token.device != weight.device:
            self._token = token = _Collect.apply(  # type: ignore[no-untyped-call]
                self, self._make(), weight, self._bias
            )
        return token

    def applied(self, x: Tensor) -> Tensor:
        """Returns x times the weight, plus the bias, neither of which autograd looks at."""
        bias = None if self._bias is None else self._bias.detach()
        return functional.linear(x, self._weight.detach(), bias)

    def note(self, x: Tensor, derivative: Tensor) -> None:
        """Notes rows, and the derivatives of what came of them."""
        inputs, derivatives = self._rows.setdefault(_backward_pass(), ([], []))
        inputs.append(x)
        derivatives.append(derivative)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tap:
        """Hooks are copied with a model; they find that they are not the copy's."""
        return self

    def __reduce__(self) -> tuple[Callable[[], Tap], tuple[()]]:
        """Hooks are pickled with a model; they come back as those of a tap that has ended."""
        return _ended, ()

    def _before(self, module: Affine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.alive:
            self.remove()
            return
        weight, bias = self._weight, self._bias
        if module.weight is not weight or not self.wanted or not torch.is_grad_enabled():
            return
        self.token()
        self._quiet = [p for p in (weight, bias) if p is not None and p.requires_grad]
        for parameter in self._quiet:
            parameter.requires_grad_(False)

    def _after(
        self, module: Affine, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor | None
    ) -> Tensor | None:
        quiet, self._quiet = self._quiet, []
        for parameter in quiet:
            parameter.requires_grad_(True)
        if not quiet or output is None:
            return None
        x = args[0] if args else kwargs["input"]
        watched: Tensor = _Watch.apply(  # type: ignore[no-untyped-call]
            output, self._token, x.detach(), self, module
        )
        return watched

    def _collected(self) -> Rows:
        self._token = None
        return self._rows.pop(_backward_pass(), ([], []))


def _backward_pass() -> int:
    """Returns the number of the backward pass that is under way."""
    number: int = torch._C._current_graph_task_id()
    return number


class _Nobody:
    """Whose tap has ended, since it is gone as soon as it is made."""

    def make(self, weight: Tensor, inputs: list[Tensor], derivatives: list[Tensor]) -> Gradients:
        raise NotImplementedError


def _ended() -> Tap:
    return Tap(torch.empty(0), None, _Nobody().make)


class _Watch(torch.autograd.Function):
    """Notes what goes by in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, token: Tensor, x: Tensor, tap: Tap, module: Affine
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.tap, ctx.module = tap, module
        if not output._is_view():
            ctx.mark_dirty(output)  # so that the next layer may work in place, as it might before
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, derivative: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        ctx.tap.note(input_rows(ctx.module, x), output_rows(ctx.module, derivative))
        return derivative, None, None, None, None


class _Collect(torch.autograd.Function):
    """Makes the gradients when all rows have gone by."""

    @staticmethod
    def forward(
        ctx: Any, tap: Tap, make: MakeGradients, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.tap, ctx.make, ctx.weight = tap, make, weight
        return weight.new_empty(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, derivatives = ctx.tap._collected()
        return None, None, *ctx.make(ctx.weight, inputs, derivatives)
