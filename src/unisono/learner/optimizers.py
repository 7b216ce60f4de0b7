"""Hooks on the steps of the user's own optimizers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from unisono.errors import UserError
from unisono.fabric import TensorVector
from unisono.learner.state_codec import from_bundle, to_bundle
from unisono.learner.updater import SliceUpdater
from unisono.strategies.base import StateBundle


class Optimizers:
    """One or several optimizers that together make one update.

    The update begins with the first ``step`` and is done when each has stepped, or when one of
    them steps again. ``before`` is called when it begins, and again after new gradients in the
    middle of it. It returns whether the step may be taken: if not, the gradients are set to None,
    so that the optimizer does nothing.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], before: Callable[[], bool], after: Callable[[], None]
    ) -> None:
        if not optimizers:
            raise UserError("a learner needs an optimizer")
        self._optimizers = list(optimizers)
        self._before = before
        self._after = after
        self._stepped: set[int] = set()
        self._may = True
        self._is_noticing = True
        self.fresh = False
        """Whether there are gradients that no step has seen."""
        self._hooks: list[Any] = []
        self._touched: tuple[torch.Tensor, int] | None = None

    def __len__(self) -> int:
        return len(self._optimizers)

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._optimizers)

    def describe(self) -> str:
        return ", ".join(type(optimizer).__name__ for optimizer in self._optimizers)

    def watch(self) -> None:
        for place, optimizer in enumerate(self._optimizers):
            self._hooks.append(optimizer.register_step_pre_hook(partial(self._pre, place)))
            self._hooks.append(optimizer.register_step_post_hook(partial(self._post, place)))

    def unwatch(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """A context in which steps are no updates: they are captured, and not taken."""
        self._is_noticing = False
        try:
            yield
        finally:
            self._is_noticing = True

    def parameters(self) -> list[torch.Tensor]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return [p for group in groups for p in group["params"]]

    def note_gradients(self) -> None:
        self.fresh = True
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._touched = (parameter, parameter.grad._version)
                        return

    def gradients_gone(self) -> bool:
        """Whether no gradient is left, as after ``zero_grad`` without a step before it.

        Values are read only if a gradient was written since ``note_gradients``.
        """
        if self._touched is not None:
            parameter, version = self._touched
            if parameter.grad is not None and parameter.grad._version == version:
                return False
        return all(p.grad is None or not bool(p.grad.any()) for p in self.parameters())

    def clear_gradients(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()

    @property
    def half_done(self) -> bool:
        """Whether some have stepped and some have not."""
        return bool(self._stepped)

    @property
    def has_no_state(self) -> bool:
        """Whether they begin, or begin anew."""
        return not any(optimizer.state for optimizer in self._optimizers)

    def finish_update(self) -> None:
        """Ends the update, although some optimizers may not have stepped."""
        self._stepped.clear()
        self._after()

    # OptimizerAccess.

    def learning_rate(self) -> float:
        return float(self._optimizers[0].param_groups[0]["lr"])

    def learning_rates(self) -> list[float]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return [float(group["lr"]) for group in groups]

    def updater(
        self, parameters: Sequence[torch.Tensor], values: TensorVector, start: int
    ) -> SliceUpdater:
        return SliceUpdater(self._optimizers, parameters, values, start)

    def restart(self) -> None:
        for optimizer in self._optimizers:
            optimizer.state = defaultdict(dict)

    def export(self) -> StateBundle:
        return to_bundle("optimizers", self.state_dicts())

    def take_over(self, bundle: StateBundle) -> None:
        self.load_state_dicts(from_bundle("optimizers", bundle))

    def state_dicts(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load_state_dicts(self, states: Sequence[dict[str, Any]]) -> None:
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    # Hooks.

    def _pre(
        self, place: int, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not self._is_noticing:
            return
        if any(callable(a) for a in args[1:]) or kwargs.get("closure") is not None:
            raise UserError("optimizer.step(closure) is not supported: compute the loss before it")
        if place in self._stepped:
            self.finish_update()
        if self.fresh or not self._stepped:
            self._may = self._before()
            self.fresh = False
        if not self._may:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def _post(self, place: int, *_: object) -> None:
        if not self._is_noticing:
            return
        self._stepped.add(place)
        if len(self._stepped) == len(self._optimizers):
            self.finish_update()
