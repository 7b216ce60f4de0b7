"""A learner's incarnations in a run: one session after the other."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from unisono.coordinator.client import Refused
from unisono.coordinator.messages import Failed, Leave, Sync
from unisono.errors import Cause, ProcessLost, UserError
from unisono.fabric import Cancelled, Vector
from unisono.learner.placement import Placement, address_at
from unisono.learner.planner import Minibatch
from unisono.learner.session import Session

_LONGEST_TRACEBACK = 32768


class Rejoiner:
    """Sessions of one learner.

    A refusal (the learner was declared dead) ends an incarnation, not the user's loop: until the
    next minibatch nothing that the user does affects the run, and that minibatch is drawn by the
    next incarnation, with a donor's state.
    """

    def __init__(
        self,
        placement: Placement,
        make: Callable[[Any], Session[Any]],
        on_join: Callable[[Session[Any]], None],
        on_rejoin: Callable[[], None],
    ) -> None:
        self._placement = placement
        self._make = make
        self._on_join = on_join
        self._on_rejoin = on_rejoin
        self._incarnation = 0
        self._refused = False
        self.current: Session[Any] | None = None
        """The current session, or the last one; None between two."""
        self._left = False
        self._finished = False
        """Whether there are no more minibatches."""
        self._last_consensus: Vector | None = None
        self.leads = False
        """After ``leave_early``: whether this learner is the leader."""

    @property
    def session(self) -> Session[Any]:
        """The current session."""
        assert self.current is not None
        return self.current

    @property
    def is_asked_to_leave(self) -> bool:
        """Whether the learner is to leave before the end of the run."""
        return self.current is not None and self.current.client.asked_to_leave

    def next(self) -> tuple[Minibatch, Any] | None:
        """The next minibatch, in the next incarnation if this one was refused."""
        while True:
            found = None
            with self.surviving():
                if self.current is None:
                    self._begin()
                found = self.session.stepper.next()
                if found is None:
                    self.session.stepper.finish()
            if not self._refused:
                self._finished = found is None
                return found
            self.session.fabric.close()
            self.current = None
            self._refused = False
            self._incarnation += 1
            self._on_rejoin()

    def surviving(self) -> Rejoiner:
        """A context in which a refusal ends the incarnation, without an exception."""
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, end: BaseException | None, trace: object
    ) -> bool:
        if end is None or not isinstance(reason_of(end), Refused):
            return False
        self._refused = True
        if self.current is not None:
            self.current.replica.abort_update()
        return True

    def end(self, error: BaseException | None) -> None:
        """Leaves after the loop, or reports its error.

        A learner that broke out of its loop may lead, and a script asks only now. One that has lost
        one of its processes reports nothing: it is lost, and the run has not failed.
        """
        if self.current is None:
            return
        if error is None and self._finished:
            self.leave()
        elif error is None:
            self.leave_early()
        elif isinstance(error, Exception) and not isinstance(error, Cancelled | ProcessLost):
            self.current.replica.abort_update()
            self._report(error)

    def consensus(self) -> Vector | None:
        """The strategy's consensus; after ``leave_early`` as it was then.

        None, the learner's own parameters, also where the learner is refused while it asks others.
        """
        found = self._last_consensus
        if found is None:
            with self.surviving():
                found = self.session.participant.consensus()
        return found

    def leave_early(self) -> None:
        """Leaves before the run is over, with the consensus as it is."""
        if not self._left and self.current is not None:
            self.current.replica.abort_update()
            with self.surviving():
                self.current.stepper.write_checkpoint()  # if due: others may have written theirs
                if self.current.shares_nothing:
                    self.current.participant.flush()
                self._last_consensus = self.current.participant.consensus()
            self.leads = self.leave()

    def leave(self) -> bool:
        """Leaves the run, once; returns whether this learner is the leader."""
        leads = False
        if not self._left and self.current is not None:
            self._left = True
            self.current.replica.abort_update()
            with self.surviving():
                leads = self.current.client.call(Leave(), "session").leads
        return leads

    def _begin(self) -> None:
        fabric = self._placement.node(address_at(self._placement, self._incarnation))
        fabric.keep_random_state()
        self.current = self._make(fabric)
        self._on_join(self.current)

    def _report(self, error: Exception) -> None:
        """Fails the run everywhere: an error of the user, or a bug with its traceback."""
        if isinstance(error, UserError):
            cause, text = error.cause, str(error)
        else:
            cause, text = Cause.EXCEPTION, "".join(traceback.format_exception(error))
        try:
            self.session.client.tell(Failed(cause, text[-_LONGEST_TRACEBACK:]))
            if self._placement.learners == 1:
                # The coordinator may be in this process, which must not end before it has heard.
                self.session.client.call(Sync(), "session")
        except Cancelled:
            return


def reason_of(end: BaseException) -> BaseException:
    """The reason for which a node was cancelled; any other exception is its own."""
    if isinstance(end, Cancelled) and end.__cause__ is not None:
        return end.__cause__
    return end
