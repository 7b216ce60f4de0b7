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
        self.rejoiner = rejoiner
        self._may_update = True
        self._steps_here = True

    def notice_skip(self, session: Session[Any]) -> None:
        """Counts minibatches whose gradients were cleared without a step as skipped."""
        if self.optimizers.half_done or not session.stepper.has_open:
            return
        if self.optimizers.gradients_gone():
            self.guard.count()
            session.stepper.skipped()

    def replay(self, work: Callable[[], None], *, checks: bool) -> None:
        """An update by work that does what the optimizers' steps would.

        With ``checks`` the work takes no step that is not finite; so unless others see the
        gradients, nobody waits for the device to look.
        """
        unseen = checks and not self.rejoiner().session.participant.shares_gradients
        if self._begin(unseen or self.guard.allows(self.optimizers.parameters())):
            work()
        self.optimizers.fresh = False
        self.optimizers.finish_update()

    def _before(self) -> bool:
        return self._begin(self.guard.allows(self.optimizers.parameters()))

    def _begin(self, finite: bool) -> bool:
        """Returns whether the optimizers are to step here and now."""
        rejoiner = self.rejoiner()
        session = rejoiner.session
        if not session.stepper.has_open and not self.optimizers.fresh:
            raise UserError("optimizer.step() without gradients of learner.backward(loss) to use")
        if session.replica.is_showing:
            raise UserError("optimizer.step() inside learner.consensus(): it is to look at only")
        self._may_update = finite or (self.optimizers.half_done and self._may_update)
        if finite and not self.optimizers.half_done:
            with rejoiner.surviving():
                self._steps_here = session.stepper.update_begins()
        session.replica.begin_update()
        return finite and self._steps_here

    def _after(self) -> None:
        rejoiner = self.rejoiner()
        session = rejoiner.session
        with rejoiner.surviving():
            if self._may_update:
                session.stepper.update_done()
            else:
                session.replica.abort_update()
                session.stepper.skipped()
