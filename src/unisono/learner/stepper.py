"""The training step that all strategies share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from unisono.coordinator.messages import Idle, Skip
from unisono.errors import UserError
from unisono.fabric import Address
from unisono.learner.planner import (
    EndOfRound,
    Item,
    Minibatch,
    NewAssignment,
    NoFreeLease,
    Planner,
    PoolExhausted,
)
from unisono.learner.prefetch import Prefetcher
from unisono.learner.replica import LearnerReplica
from unisono.learner.task import Task
from unisono.strategies.base import Participant, Sharding, TrainedWork

T = TypeVar("T")
_WAITING = (NoFreeLease, PoolExhausted)
"""Items that come after all earlier ones were trained."""


class Stepper(Generic[T]):
    """Calls the participant's hooks, from minibatch to minibatch.

    A minibatch is *open* from ``backward_done`` until ``update_done`` (its gradient was used by an
    optimizer step) or ``skipped`` (it never will be). A learner's part of a round ends with the
    update on its last minibatch, or with the following ``next`` if there is no such update: nobody
    waits for a step that another skipped. What is open when the pool is exhausted is skipped, too.
    """

    def __init__(
        self, replica: LearnerReplica, participant: Participant, planner: Planner, task: Task[T]
    ) -> None:
        self._replica = replica
        self._participant = participant
        self._planner = planner
        self._task = task
        self._lockstep = planner.round_plan.lockstep
        self._items: Iterator[tuple[Item, T | None]] | None = None
        self._current: Minibatch | None = None
        self._seen = False
        """Whether the current minibatch had a backward pass."""
        self._agreed = False
        """Whether its gradients were shared already."""
        self._open = TrainedWork()
        self._has_open = False
        self._end: EndOfRound | None = None
        """Set on the last minibatch of this learner's part of a round, until the round ends."""
        self._last_round = 0
        self._checkpoint_due = False
        self.data_wait_s = 0.0
        self.waiting_since: float | None = replica.fabric.now()
        """Since when it has waited for a minibatch, at first for its state; None: it does not."""
        self.computing_since = 0.0
        """When the current minibatch was drawn."""
        self._leader: Address | None = None
        self.stopped = False
        """At the end: whether the run was stopped before its last epoch."""
        self.entered = False
        """Whether this learner has the run's parameters; one that came too late never gets them."""

    def start(self) -> None:
        """Gets the run's state, and begins to request minibatches."""
        self._participant.start()
        if self._planner.round_plan.sharding is Sharding.DYNAMIC:
            self.entered = self._participant.enter(None)
        items = self._loaded()
        if self._task.prefetch > 0:
            items = iter(Prefetcher(self._replica.fabric, items, self._task.prefetch))
        self._items = items

    def next(self) -> tuple[Minibatch, T] | None:
        """The next minibatch and its data; None when everything is committed."""
        assert self._items is not None
        self._pass_over_unused()
        self._end_round()
        self.write_checkpoint()
        while True:
            began = self._replica.fabric.now()
            self.waiting_since = began if self.waiting_since is None else self.waiting_since
            item, data = next(self._items, (None, None))
            if isinstance(item, Minibatch):
                self.waiting_since, self.computing_since = None, self._replica.fabric.now()
                self.data_wait_s += self.computing_since - began
                self._current, self._seen, self._agreed = item, False, False
                self._end = item.end
                self._replica.reached = item.reached / self._task.total
                self._participant.before_minibatch()
                return item, cast("T", data)
            if item is None:
                self._current, self.waiting_since, self.computing_since = None, None, began
                return None
            self._handle(item)
            self.write_checkpoint()

    def backward_done(self, *, accumulate: bool = False) -> None:
        """Called after the backward pass on the current minibatch."""
        current = self._current
        if current is None:
            raise UserError("the data is over: backward belongs into the loop over learner.draw()")
        work = TrainedWork()
        if not current.stand_in and not self._seen:
            position = current.position
            work = TrainedWork([(position, position + 1)], self._task.examples(current))
        if self._lockstep and self._agreed:
            raise UserError(
                "the gradients of this minibatch were shared already: call backward with "
                "accumulate=True for all but its last loss"
            )
        self._open.add(work)
        self._has_open, self._seen, self._agreed = True, True, not accumulate
        self._participant.after_backward(current.sync_round, work, accumulate=accumulate)

    @property
    def is_leader(self) -> bool:
        """At the end: whether this learner should save the final model."""
        return self._leader == self._replica.fabric.address

    @property
    def has_open(self) -> bool:
        """Whether there are gradients that no step has used."""
        return self._has_open

    def update_begins(self) -> bool:
        """Called before the optimizer steps; False: the step is taken elsewhere."""
        return self._participant.before_update()

    def update_done(self) -> None:
        """Called when the optimizer has stepped on all open minibatches."""
        work = self._close()
        self._replica.record(trained=work.note())
        self._replica.end_update(work)
        self._participant.after_update()
        self._end_round()

    def skipped(self) -> None:
        """Called when the open minibatches will not be stepped on."""
        self._tell_skipped(self._close())

    def finish(self) -> None:
        """Lets the strategy finish, and applies pending deltas."""
        self._participant.finish(self._leader)
        self._replica.end_update(TrainedWork())

    def _loaded(self) -> Iterator[tuple[Item, T | None]]:
        """The planner's items with their data, loaded ahead as far as the pool has any."""
        ahead: deque[Item] = deque()
        announced = 0
        for item in self._planner.items():
            ahead.append(item)
            if isinstance(item, Minibatch):
                self._task.announce(item)
                announced += 1
            room = 0 if isinstance(item, _WAITING) else self._task.window
            while ahead and (announced > room or not isinstance(ahead[0], Minibatch)):
                first = ahead.popleft()
                if isinstance(first, Minibatch):
                    announced -= 1
                    yield first, self._task.load(first)
                else:
                    yield first, None

    def _handle(self, item: Item) -> None:
        if isinstance(item, NewAssignment):
            self.entered = self._participant.enter(item.assignment)
        elif isinstance(item, EndOfRound):
            self._end = item
            self._end_round()
        elif isinstance(item, PoolExhausted):
            self._leader, self.stopped = item.leader, item.stopped
        elif isinstance(item, NoFreeLease):
            if self._has_open:
                self._task.on_drop()
                self.skipped()
            self._participant.flush()
            self._replica.client.tell(Idle())

    def _close(self) -> TrainedWork:
        work, self._open, self._has_open = self._open, TrainedWork(), False
        return work

    def _tell_skipped(self, work: TrainedWork) -> None:
        if work.ranges:
            self._replica.record(skipped=work.note())
            self._replica.client.tell(Skip(work.note()))

    def _pass_over_unused(self) -> None:
        """Skips the current minibatch if the user drew the next without a backward pass."""
        current = self._current
        if current is None or self._seen:
            return
        if self._lockstep:
            raise UserError(
                "a minibatch was drawn and there was no backward: the others wait for its "
                "gradients; use a strategy that is not in lockstep, for example averaging"
            )
        self._tell_skipped(TrainedWork([(current.position, current.position + 1)]))
        self._current = None

    def _end_round(self) -> None:
        """Static sharding: does the sync round if the last minibatch of this part is done."""
        if self._end is None:
            return
        ended, self._end = self._end, None
        self._participant.end_of_round(ended.sync_round)
        self._last_round = ended.sync_round
        self._checkpoint_due |= ended.checkpoint

    def write_checkpoint(self) -> None:
        """Writes the part of a checkpoint that is due, if any.

        Called between two iterations of the user's loop, so that schedulers and scalers are in
        step. Where every step is a round it waits for the end of an accumulation.
        """
        due = self._participant.take_checkpoint()
        every_step = self._lockstep or not self._planner.round_plan.commits_by_round
        if self._checkpoint_due and not (every_step and self._has_open):
            self._participant.flush()
            due = (self._last_round, self._participant.state())
            self._checkpoint_due = False
        if due is not None:
            self._task.on_checkpoint(*due)
