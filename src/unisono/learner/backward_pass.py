"""The backward pass of a learner, after which its strategy may act on the gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch

from unisono.fabric.blocking import check_may_block
from unisono.learner.meter import Meter
from unisono.learner.placement import Placement
from unisono.learner.processes import Processes
from unisono.learner.rejoiner import Rejoiner
from unisono.learner.update_hooks import UpdateHooks


class BackwardPass:
    """Computes gradients, or replays a captured pass, and lets the strategy see them.

    Args:
        updates: the hooks around its optimizers.
        processes: of the learner.
        meter: adds up losses.
        reduce_gradients: called after each backward pass, before the strategy sees the gradients.
        placement: says what a pass costs a simulated learner.
    """

    def __init__(
        self,
        updates: UpdateHooks,
        processes: Processes,
        meter: Meter,
        reduce_gradients: Callable[[], None],
        placement: Placement,
    ) -> None:
        self.updates = updates
        self._processes = processes
        self._meter = meter
        self._reduce_gradients = reduce_gradients
        self._placement = placement

    @property
    def is_sliced(self) -> bool:
        """Whether this process computes slices of minibatches, and others the rest."""
        return self._processes.slices.size > 1

    def run(self, loss: torch.Tensor, *, accumulate: bool) -> None:
        """``loss.backward()``; afterwards ``.grad`` is what the optimizer should step with."""
        rejoiner = self._begin()
        loss = self._processes.share_of(loss)
        self._meter.loss(loss)
        with rejoiner.surviving():
            rejoiner.session.fabric.compute(loss.backward, self._placement.cost)
        self._processes.add_up()
        self._reduce_gradients()
        self.updates.guard.mark(loss, self.updates.optimizers.parameters)
        self._end(rejoiner, accumulate)

    def replay(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The same by work that sets ``.grad`` and returns the loss."""
        rejoiner = self._begin()
        loss = work()
        self._meter.loss(loss)
        with rejoiner.surviving():
            rejoiner.session.fabric.compute(lambda: None, self._placement.cost)
        self._reduce_gradients()
        self._end(rejoiner, accumulate=False)
        return loss

    def _begin(self) -> Rejoiner:
        rejoiner = self.updates.rejoiner()
        if self._placement.learners > 1:
            check_may_block()
        with rejoiner.surviving():
            self.updates.notice_skip(rejoiner.session)
        return rejoiner

    def _end(self, rejoiner: Rejoiner, accumulate: bool) -> None:
        with rejoiner.surviving():
            rejoiner.session.stepper.backward_done(accumulate=accumulate)
        self.updates.optimizers.note_gradients()
