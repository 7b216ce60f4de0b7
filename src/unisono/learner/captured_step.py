"""A training step on a GPU as CUDA graphs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from unisono.learner.backward_pass import BackwardPass
from unisono.learner.cuda_graphs import CudaGraphs, Work
from unisono.learner.finite_guard import make_not_finite_like
from unisono.learner.optimizers import Optimizers
from unisono.learner.skip_counts import SkipCounts

CAPTURE_AFTER = 3
"""Minibatches of one shape that are trained as ever before it is captured."""
_PLAIN = (bool, int, float, str, tuple, type(None))
MOST_SHAPES = 3
"""Shapes that are captured, since each keeps memory: the usual one, and the last of an epoch."""


@runtime_checkable
class Replayable(Protocol):
    """An optimizer whose gradients or steps depend on what the host counts.

    Its step must leave parameters alone where gradients are not finite.
    """

    def replay_key(self) -> Hashable | None:
        """Returns what the host decides of the next minibatch; None: it cannot be captured."""

    def captured(self) -> AbstractContextManager[None]:
        """A context in which backward pass and step are captured, and count for nothing."""

    def was_finite(self) -> Tensor:
        """Returns whether the last step was finite, and so was taken, on the device."""

    def replayed(self) -> None:
        """Counts a minibatch whose backward pass and step were replayed."""


@dataclass
class _Graphs:
    """The two halves of a step on minibatches of one shape, and the memory that they use."""

    inputs: list[Tensor]
    loss: Tensor
    gradients: list[tuple[Tensor, Tensor]]
    """Parameters, and what their ``.grad`` is between the halves."""
    backward: Work
    update: Work


class CapturedStep:
    """Loss, backward pass, clipping, finite check and update, replayed as CUDA graphs.

    A step is two graphs, one up to the gradients and one from there to the new parameters; between
    them the strategy sees the gradients as ever. Nothing waits for the device: a step that is not
    finite is not taken, and noticed some steps later. Rates are tensors, so schedules go on setting
    ``group["lr"]``; whatever else the host decides (other settings of the optimizer, dropout, new
    optimizer state, parameters that have moved) makes it capture anew.

    Each shape of minibatch is trained as ever ``CAPTURE_AFTER`` times and then captured; so are
    minibatches on a CPU, and of too many shapes. If the loop does what cannot be captured, it stays
    so, and a warning says why.
    """

    def __init__(
        self,
        model: nn.Module,
        backward_pass: BackwardPass,
        loss: Callable[..., Tensor],
        before_update: Callable[[], object],
    ) -> None:
        """Captures nothing yet.

        Args:
            model: What is trained.
            backward_pass: The learner's.
            loss: From the tensors of a minibatch to its mean loss.
            before_update: Called between backward pass and update, to clip gradients.
        """
        self._model = model
        self._backward_pass = backward_pass
        self._updates = backward_pass.updates
        self._loss = loss
        self._before_update = before_update
        self._graphs_of: CudaGraphs | None = None if backward_pass.is_sliced else CudaGraphs()
        self._counting = [each for each in self._updates.optimizers if isinstance(each, Replayable)]
        self._checks = all(map(_checks_gradients, self._updates.optimizers))
        self._dropouts = [m for m in model.modules() if isinstance(m, _DropoutNd)]
        self._settings: tuple[Any, ...] = ()
        self._states: list[Any] = []
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, dict[Hashable, _Graphs]] = {}
        self._rates: list[Tensor] = []
        self._rates_set: list[float] = []

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Trains a minibatch; returns its loss, detached."""
        graphs = self._find(inputs)
        if graphs is None:
            return self._step(*inputs)

        def backward() -> Tensor:
            for own, given in zip(graphs.inputs, inputs, strict=True):
                own.copy_(given)
            graphs.backward()
            for parameter, gradient in graphs.gradients:
                parameter.grad = gradient
            return graphs.loss.clone()

        loss = self._backward_pass.replay(backward)
        self._set_rates()
        self._updates.replay(graphs.update, checks=self._checks)
        for parameter, _ in graphs.gradients:
            parameter.grad = None
        for optimizer in self._counting:
            optimizer.replayed()
        if self._updates.guard.captured is not None:
            self._updates.guard.captured.look()
        return loss

    def _step(self, *inputs: Tensor) -> Tensor:
        """Trains a minibatch without a graph."""
        loss = self._loss(*inputs)
        self._backward_pass.run(loss, accumulate=False)
        self._before_update()
        self._updates.optimizers.step()
        self._updates.optimizers.clear_gradients()
        return loss.detach()

    def _find(self, inputs: Sequence[Tensor]) -> _Graphs | None:
        """The graphs for a minibatch, captured now if it is time to."""
        if self._graphs_of is None or not self._graphs_of.can_capture(inputs):
            return None
        self._forget_what_has_changed()
        shape = tuple((t.shape, t.dtype) for t in inputs)
        key = tuple(optimizer.replay_key() for optimizer in self._counting)
        of_shape = self._captured.get(shape)
        if of_shape is None and len(self._captured) == MOST_SHAPES:
            return None
        self._seen[shape] += 1
        if self._seen[shape] <= CAPTURE_AFTER or None in key:
            return None
        found = self._captured.setdefault(shape, {})
        if key not in found:
            try:
                found[key] = self._capture(inputs)
            except RuntimeError as error:
                self._graphs_of = None
                self._captured.clear()
                reason = str(error).split("\n")[0]
                warnings.warn(
                    "unisono: training steps are not captured as CUDA graphs, and take longer: "
                    f"{reason}",
                    stacklevel=4,
                )
                return None
        return found[key]

    def _capture(self, inputs: Sequence[Tensor]) -> _Graphs:
        """Captures the step, and does nothing else."""
        assert self._graphs_of is not None
        optimizers, guard = self._updates.optimizers, self._updates.guard
        parameters = optimizers.parameters()
        own = [t.clone() for t in inputs]
        counts = guard.captured = guard.captured or SkipCounts(own[0].device)
        rates = self._make_rates(own[0].device)
        losses: list[Tensor] = []
        gradients: list[tuple[Tensor, Tensor]] = []

        def backward() -> None:
            loss = self._loss(*own)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            make_not_finite_like(loss, parameters)

        def update() -> None:
            self._before_update()
            with _rates_for_capture(optimizers, rates):
                counts.count(_step_if_finite(optimizers))

        with ExitStack() as stack:
            stack.enter_context(optimizers.unnoticed())
            for optimizer in self._counting:
                stack.enter_context(optimizer.captured())
            optimizers.clear_gradients()
            stack.callback(optimizers.clear_gradients)
            first = self._graphs_of.capture(backward)
            gradients += [(p, p.grad) for p in parameters if p.grad is not None]
            second = self._graphs_of.capture(update)
        return _Graphs(own, losses[0], gradients, first, second)

    def _forget_what_has_changed(self) -> None:
        """Drops all graphs if the host has changed what they were captured with."""
        groups = _groups(self._updates.optimizers)
        settings = (
            self._model.training,
            *(dropout.p for dropout in self._dropouts),
            *(v for g in groups for k, v in g.items() if k != "lr" and isinstance(v, _PLAIN)),
            *(p.data_ptr() for g in groups for p in g["params"]),
        )
        states = [optimizer.state for optimizer in self._updates.optimizers]
        same_states = len(states) == len(self._states) and all(map(is_, states, self._states))
        if settings != self._settings or not same_states:
            self._captured.clear()
            self._seen.clear()
            self._settings, self._states = settings, states

    def _make_rates(self, device: torch.device) -> list[Tensor]:
        """A tensor for the learning rate of each parameter group."""
        groups = _groups(self._updates.optimizers)
        if len(self._rates) != len(groups):
            self._rates = list(torch.zeros(len(groups), device=device).unbind())
            self._rates_set = [0.0] * len(groups)
        return self._rates

    def _set_rates(self) -> None:
        rates = [float(group["lr"]) for group in _groups(self._updates.optimizers)]
        for place, rate in enumerate(rates):
            if rate != self._rates_set[place]:
                self._rates[place].fill_(rate)
        self._rates_set = rates


def _groups(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _checks_gradients(optimizer: Optimizer) -> bool:
    """Whether its step, once captured, is not taken where gradients are not finite."""
    return isinstance(optimizer, Replayable) or takes_found_inf(optimizer)


def takes_found_inf(optimizer: Optimizer) -> bool:
    """Whether it is one of torch's fused optimizers, which look at ``found_inf`` on the device."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _gradient_norms(parameters: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each gradient, 0 where there is none; finite if it is finite, below 1e19."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    doubles = any(gradient.dtype is torch.float64 for gradient in gradients)
    sums = torch.float64 if doubles else torch.float32
    found = iter(torch._foreach_norm(gradients, dtype=sums))
    none = torch.zeros((), dtype=sums, device=parameters[0].device)
    return torch.stack([none if p.grad is None else next(found) for p in parameters])


def _step_if_finite(optimizers: Optimizers) -> Tensor:
    """Takes a step unless it is not finite, which it returns: on the device, 1 or 0.

    Where every optimizer finds out for itself, that is asked, and the gradients are not read again.
    """
    own = [each for each in optimizers if isinstance(each, Replayable)]
    if len(own) == len(optimizers):
        optimizers.step()
        return torch.stack([each.was_finite() for each in own]).all().logical_not().float()
    norms = _gradient_norms(optimizers.parameters())
    not_finite = norms.isfinite().all().logical_not().float()
    with _norms_for_capture(optimizers, norms, not_finite):
        optimizers.step()
    return not_finite


@contextmanager
def _rates_for_capture(optimizers: Iterable[Optimizer], rates: Sequence[Tensor]) -> Iterator[None]:
    """A context in which optimizers find their rates on the device."""
    groups = _groups(optimizers)
    keys: list[str] = ["lr", "capturable"]
    kept = [{key: group[key] for key in keys if key in group} for group in groups]
    try:
        for group, rate, before in zip(groups, rates, kept, strict=True):
            group["lr"] = rate
            if "capturable" in before:
                group["capturable"] = True
        yield
    finally:
        for group, before in zip(groups, kept, strict=True):
            group.update(before)


@contextmanager
def _norms_for_capture(
    optimizers: Iterable[Optimizer], norms: Tensor, not_finite: Tensor
) -> Iterator[None]:
    """A context in which torch's fused optimizers find on the device whether to step at all.

    For hooks that look (``bound_steps``) they have the norm of the gradients of each group, too.
    """
    fused: list[Any] = [each for each in optimizers if takes_found_inf(each)]
    sizes = [len(group["params"]) for group in _groups(optimizers)]
    of_group = iter(torch.split(norms.float(), sizes))
    of_optimizer = {each: [next(of_group) for _ in each.param_groups] for each in optimizers}
    try:
        for optimizer in fused:
            optimizer.found_inf = not_finite
            optimizer.gradient_norms = list(map(torch.linalg.vector_norm, of_optimizer[optimizer]))
        yield
    finally:
        for optimizer in fused:
            del optimizer.found_inf
            del optimizer.gradient_norms
