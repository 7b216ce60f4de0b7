"""The step that every strategy shares: minibatches in, rounds at the right moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from unisono.learner.plan import Dry, EndOfPart, EnterDeal, Item, Minibatch, Over, Planner
from unisono.learner.queue import Ahead
from unisono.learner.replica import LearnerReplica
from unisono.strategies.base import Division, Parcel, Participant, Work

T = TypeVar("T")


class Stepper(Generic[T]):
    """Drives one participant: what to train next, what was trained, when a round ends.

    A minibatch is *open* from ``backward_done`` until ``update_done`` (its gradient is in an
    optimizer step) or ``skipped`` (it never will be). A part is closed by the update on its last
    minibatch, or by the following ``next`` if that update does not come: nobody waits for a step
    that another skipped.
    """

    def __init__(
        self,
        replica: LearnerReplica,
        participant: Participant,
        planner: Planner,
        load: Callable[[Minibatch], T],
        examples: Callable[[Minibatch], int],
        *,
        prefetch: int,
        on_checkpoint: Callable[[int, Parcel], None],
    ) -> None:
        self._replica = replica
        self._participant = participant
        self._planner = planner
        self._load = load
        self._examples = examples
        self._prefetch = prefetch
        self._on_checkpoint = on_checkpoint
        self._items: Iterator[tuple[Item, T | None]] | None = None
        self._current: Minibatch | None = None
        self._open = Work()
        self._has_open = False
        self._checkpoint: int | None = None
        self.data_wait_s = 0.0
        self.leads = False
        """At the end: whether this learner is the one that sees to the final model."""
        self.entered = False
        """Whether this learner has the run's parameters: one that came too late never gets them."""

    def start(self) -> None:
        """The learner has joined: gets its state, and begins to plan."""
        self._participant.start()
        if self._planner.terms.division is Division.DRAWN:
            self.entered = self._participant.enter(None)
        items = self._loaded()
        if self._prefetch > 0:
            items = iter(Ahead(self._replica.fabric, items, self._prefetch))
        self._items = items

    def next(self) -> tuple[Minibatch, T] | None:
        """The next minibatch and its data; None when everything is settled."""
        assert self._items is not None
        self._write_checkpoint()
        while True:
            began = self._replica.fabric.now()
            item, data = next(self._items, (None, None))
            if isinstance(item, Minibatch):
                self.data_wait_s += self._replica.fabric.now() - began
                self._current = item
                assert data is not None
                return item, data
            if item is None:
                return None
            self._handle(item)
            self._write_checkpoint()

    def backward_done(self, *, accumulate: bool = False) -> None:
        """The gradient of the current minibatch is there."""
        assert self._current is not None
        work = Work()
        if not self._current.stand_in:
            position = self._current.position
            work = Work([(position, position + 1)], self._examples(self._current))
        self._open.add(work)
        self._has_open = True
        agreement = self._current.agreement
        self._participant.after_backward(agreement, work, accumulate=accumulate)

    @property
    def has_open(self) -> bool:
        """Whether there are gradients that no step has used."""
        return self._has_open

    def update_done(self) -> None:
        """The optimizer has stepped on all open minibatches."""
        work, self._open, self._has_open = self._open, Work(), False
        self._replica.record(trained=work.note())
        self._replica.end_update(work)
        self._participant.after_update()
        self._end_part()

    def skipped(self) -> int:
        """The open minibatches will not be stepped on; says how many there were."""
        work, self._open, self._has_open = self._open, Work(), False
        if work.ranges:
            self._replica.record(skipped=work.note())
            self._replica.client.tell("skip", ranges=work.note())
        return sum(stop - start for start, stop in work.ranges)

    def finish(self) -> None:
        """Applies what is pending."""
        self._replica.end_update(Work())
        self._participant.finish()

    def _loaded(self) -> Iterator[tuple[Item, T | None]]:
        for item in self._planner.items():
            yield item, self._load(item) if isinstance(item, Minibatch) else None

    def _handle(self, item: Item) -> None:
        if isinstance(item, EnterDeal):
            self.entered = self._participant.enter(item.deal)
        elif isinstance(item, EndOfPart):
            self._close_part(item)
        elif isinstance(item, Over):
            self.leads = item.leads
        elif isinstance(item, Dry):
            self._participant.flush()
            self._replica.client.tell("idle")

    def _end_part(self) -> None:
        """Dealt: if this was the last minibatch of its part, the round happens in this step."""
        assert self._items is not None and self._current is not None
        if self._current.ends_part:
            item, _ = next(self._items)
            assert isinstance(item, EndOfPart)
            self._current = replace(self._current, ends_part=False)
            self._close_part(item)

    def _close_part(self, ended: EndOfPart) -> None:
        self._participant.end_of_part(ended.agreement)
        if ended.checkpoint:
            self._checkpoint = ended.agreement

    def _write_checkpoint(self) -> None:
        """Between two iterations of the user's loop, so that schedulers and scalers are in step."""
        due = self._participant.take_checkpoint()
        if self._checkpoint is not None:
            self._participant.flush()
            due = (self._checkpoint, self._participant.state())
            self._checkpoint = None
        if due is not None:
            self._on_checkpoint(*due)
