"""Hooks around the user's ``optimizer.step()``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from unisono.errors import UserError
from unisono.learner.finite_guard import FiniteGuard
from unisono.learner.optimizers import Optimizers
from unisono.learner.rejoiner import Rejoiner
from unisono.learner.session import Session


class UpdateHooks:
    """Lets the strategy act before and after each update; steps that are not finite are skipped.

    Args:
        optimizers: the user's own.
        rejoiner: the learner's, once it has drawn.
    """

    def __init__(self, optimizers: Sequence[Optimizer], rejoiner: Callable[[], Rejoiner]) -> None:
        self.optimizers = Optimizers(optimizers, self._before, self._after)
        self.guard = FiniteGuard()
        self._rejoiner = rejoiner
        self._may_update = True
        self._steps_here = True

    def notice_skip(self, session: Session[Any]) -> None:
        """Counts minibatches whose gradients were cleared without a step as skipped."""
        if self.optimizers.half_done or not session.stepper.has_open:
            return
        if self.optimizers.gradients_gone():
            self.guard.count()
            session.stepper.skipped()

    def _before(self) -> bool:
        rejoiner = self._rejoiner()
        session = rejoiner.session
        if not session.stepper.has_open and not self.optimizers.fresh:
            raise UserError("optimizer.step() without gradients of learner.backward(loss) to use")
        if session.replica.is_showing:
            raise UserError("optimizer.step() inside learner.consensus(): it is to look at only")
        allowed = self.guard.allows(self.optimizers.parameters())
        self._may_update = allowed or (self.optimizers.half_done and self._may_update)
        if allowed and not self.optimizers.half_done:
            with rejoiner.surviving():
                self._steps_here = session.stepper.update_begins()
        session.replica.begin_update()
        return allowed and self._steps_here

    def _after(self) -> None:
        rejoiner = self._rejoiner()
        session = rejoiner.session
        with rejoiner.surviving():
            if self._may_update:
                session.stepper.update_done()
            else:
                session.replica.abort_update()
                session.stepper.skipped()
