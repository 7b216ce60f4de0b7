"""The object in the user's loop."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.coordinator.client import Refused
from unisono.events import UserError
from unisono.fabric import Cancelled
from unisono.learner.feed import Feed, as_batches
from unisono.learner.guard import Guard
from unisono.learner.keeper import Keeper, Stateful
from unisono.learner.log import Log
from unisono.learner.meter import Meter
from unisono.learner.optimizers import Optimizers
from unisono.learner.plan import Minibatch
from unisono.learner.session import Session, Task
from unisono.learner.site import address_at, find_site
from unisono.learner.storage import ModelStorage
from unisono.strategies.base import Parcel, Strategy, describe
from unisono.strategies.registry import make


class Learner:
    """One learner of a run, around your own model, optimizer and loop.

    Args:
        model: your model, on its device.
        optimizer: your optimizer, or several that together make one update.
        strategy: how learners agree: a name or an instance. Without one: ``solo`` alone,
            ``averaging`` in company.
        seed: of the order of the data; the same for all learners.
        prefetch: minibatches made ahead, beside the training.
        checkpoints: a directory for checkpoints.
        checkpoint_every: examples (of all learners) between checkpoints; 0: once an epoch.
        keep: how many checkpoints stay.
        resume: go on from the newest checkpoint, if there is one.
        also: other objects whose state belongs into a checkpoint: schedulers, a GradScaler.
        log: a file for what this learner trained and saw agreed, one JSON line each.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        strategy: str | Strategy | None = None,
        *,
        seed: int = 0,
        prefetch: int = 2,
        checkpoints: Path | str | None = None,
        checkpoint_every: int = 0,
        keep: int = 2,
        resume: bool = False,
        also: Mapping[str, Stateful] | None = None,
        log: Path | str | None = None,
    ) -> None:
        self._site = find_site()
        self.number = self._site.number
        """Which learner this is, from 0."""
        self.learners = self._site.learners
        """How many learners the run began with."""
        if strategy is None:
            strategy = "solo" if self.learners == 1 else "averaging"
        self.strategy: Strategy = make(strategy) if isinstance(strategy, str) else strategy
        self.model = model
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self._optimizers = Optimizers(optimizers, self._before_update, self._after_update)
        self._storage = ModelStorage(model)
        self._guard = Guard()
        self._seed = seed
        self._prefetch = prefetch
        self._keeper: Keeper | None = None
        if checkpoints is not None:
            also = also or {}
            self._keeper = Keeper(Path(checkpoints), self.number, model, self._optimizers, also)
        self._checkpoint_every = checkpoint_every
        self._keep = keep
        self._resume = resume
        self._log = None if log is None else Log(Path(log))
        self._strategy_state: Parcel | None = None
        self._incarnation = 0
        self._session: Session[Any] | None = None
        self._feed: Feed | None = None
        self._current: Minibatch | None = None
        self._crossed: dict[int, bool] = {}
        self._furthest = 0
        self._watching = False
        self._may_update = True
        self.meter = Meter()

    # The loop.

    def __enter__(self) -> Learner:
        self._watching = True
        self._optimizers.watch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._optimizers.unwatch()
        reason = error.__cause__ if isinstance(error, Cancelled) else error
        try:
            if self._session is not None:
                self._session.replica.abort_update()
                if error is None:
                    self._session.client.call("leave", "session")
                elif not isinstance(error, Cancelled):
                    self._report(error)
        finally:
            self._session = None
            self._site.close()
            if self._log is not None:
                self._log.close()
        if isinstance(error, Cancelled) and reason is not None:
            raise reason

    def draw(self, source: Any, epochs: int = 1, batch_size: int | None = None) -> Iterator[Any]:
        """Minibatches of a DataLoader or a map-style dataset, until all epochs are trained.

        The order is the pool's: shuffled anew each epoch over the whole corpus, the same for every
        number of learners. Each minibatch goes to one learner.
        """
        if not self._watching:
            raise UserError("use the learner in a with statement: with unisono.Learner(...) as l")
        if self._feed is not None:
            raise UserError("draw() can be called once for a learner: give it all epochs")
        batches, size = as_batches(source, batch_size)
        feed = self._feed = Feed(batches, size, epochs, self._seed)
        if feed.total < self.learners:
            raise UserError(
                f"{self.learners} learners and only {feed.total} minibatches: "
                "use fewer learners or smaller minibatches"
            )
        task = self._task(feed)
        if self._resume and self._keeper is not None:
            task, self._strategy_state = self._keeper.restore(task)
            self._furthest = max((stop for _, stop in task.settled), default=0)
        self._begin(task)
        while (found := self._next(task)) is not None:
            self._current, data = found
            self._furthest = max(self._furthest, self._current.position + 1)
            for examples in self._crossed:
                self._crossed[examples] |= self._crosses(examples)
            yield data

    def backward(self, loss: torch.Tensor, *, accumulate: bool = False) -> None:
        """``loss.backward()``; after it ``.grad`` is what the strategy wants stepped with.

        With ``accumulate`` more gradients follow before the next ``optimizer.step()``; strategies
        that share gradients wait for the last.
        """
        session = self._need_session()
        self.meter.loss(loss)
        self._guard.see(loss)
        session.fabric.compute(loss.backward, self._site.cost)
        with self._surviving():
            session.stepper.backward_done(accumulate=accumulate)

    def step(self, loss: torch.Tensor) -> None:
        """``backward``, ``optimizer.step()`` and ``optimizer.zero_grad()``."""
        self.backward(loss)
        self._optimizers.step()
        self._optimizers.clear_gradients()

    def every(self, *, examples: int) -> bool:
        """Whether, since the last call, this learner trained past a multiple of ``examples``.

        Counted over all learners in the pool's order, so it is true on one learner only.
        """
        crossed = self._crossed.get(examples)
        if crossed is None:
            crossed = self._crosses(examples)
        self._crossed[examples] = False
        return crossed

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """Inside, the model holds the consensus; after it, its own parameters again."""
        vector = None if self._session is None else self._session.participant.consensus()
        if vector is None:
            yield self.model
            return
        own = self._storage.new()
        self._storage.read(own)()
        self._storage.write(vector)  # type: ignore[arg-type]
        try:
            yield self.model
        finally:
            self._storage.write(own)
            self._storage.recycle(own)

    @property
    def progress(self) -> float:
        """The share of all minibatches that were handed out so far, 0 to 1."""
        return 0.0 if self._feed is None else self._furthest / self._feed.total

    @property
    def epoch(self) -> int:
        """The epoch of the current minibatch, from 0."""
        if self._feed is None or not self._furthest:
            return 0
        return self._feed.epoch(self._furthest - 1)

    @property
    def leads(self) -> bool:
        """After the last minibatch: true on the one learner that should save the model."""
        return self._session is not None and self._session.stepper.leads

    def event(self, name: str, **fields: Any) -> None:
        """Adds a line to the run's metrics."""
        if self._session is not None:
            self._session.replica.event(name, **fields)

    @property
    def bytes_sent(self) -> int:
        """Bytes of vectors that this learner has sent, in this life."""
        return 0 if self._session is None else self._session.fabric.bytes_sent

    @property
    def skipped(self) -> int:
        """Steps that were not taken because they were not finite."""
        return self._guard.skipped

    @property
    def rounds(self) -> int:
        """Agreements so far."""
        return 0 if self._session is None else self._session.participant.rounds

    def describe(self) -> list[str]:
        """What is shared, who waits, what to do with the learning rate."""
        return describe(self.strategy, self.learners)

    # Inside.

    def _crosses(self, examples: int) -> bool:
        if self._feed is None or self._current is None or self._current.stand_in:
            return False
        start = self._feed.examples_before(self._current.position)
        return (start + self._feed.count(self._current)) // examples > start // examples

    def _task(self, feed: Feed) -> Task[Any]:
        every = 0
        if self._keeper is not None:
            every = self._checkpoint_every // feed.batch_size or feed.minibatches_per_epoch
        return Task(
            total=feed.total,
            batch_size=feed.batch_size,
            load=feed.load,
            examples=feed.count,
            fingerprint=f"{self._storage.fingerprint()} seed {self._seed}",
            checkpoint_every=every,
            on_checkpoint=self._write_checkpoint,
            prefetch=self._prefetch,
        )

    def _begin(self, task: Task[Any]) -> None:
        fabric = self._site.node(address_at(self._site, self._incarnation))
        fabric.keep_random_state()
        self._session = Session(
            fabric,
            self.strategy,
            self._storage,
            self._optimizers,
            task,
            timeout=self._site.timeout,
            log=self._log,
        )
        if self._strategy_state is not None:
            self._session.participant.restore(self._strategy_state)
            self._strategy_state = None
        self.meter.start(self._session)
        self._session.join()

    def _next(self, task: Task[Any]) -> tuple[Minibatch, Any] | None:
        """The next minibatch, in the next life if this one was refused."""
        while True:
            session = self._need_session()
            self._end_iteration(session)
            with self._surviving():
                found = session.stepper.next()
                if found is None:
                    session.stepper.finish()
                    self._furthest = task.total
                    self._report_progress()
                return found
            session.fabric.close()
            self._incarnation += 1
            self._begin(task)

    def _end_iteration(self, session: Session[Any]) -> None:
        """An iteration is over: gradients that are gone without a step were skipped."""
        if self._current is None or self._feed is None:
            return
        with self._surviving():
            if self._optimizers.half_done():
                self._optimizers.finish_update()
            if session.stepper.has_open and self._optimizers.gradients_gone():
                session.stepper.skipped()
                self._guard.count()
        if self._guard.hopeless:
            raise UserError(
                f"learner {self.number}: {self._guard.skipped} steps were not finite, the last "
                "ten one after the other: lower the learning rate, or look at the data"
            )
        if not self._current.stand_in:
            examples = self._feed.count(self._current)
            seen = self._feed.examples_before(self._furthest)
            self.meter.trained(examples, seen, self._optimizers.learning_rate())

    def _report_progress(self) -> None:
        assert self._feed is not None
        seen = self._feed.examples_before(self._furthest)
        self.meter.report(seen, self._optimizers.learning_rate())

    def _before_update(self) -> bool:
        session = self._need_session()
        self._may_update = self._guard.allows(self._optimizers.parameters())
        session.replica.begin_update()
        return self._may_update

    def _after_update(self) -> None:
        session = self._need_session()
        with self._surviving():
            if self._may_update:
                session.stepper.update_done()
            else:
                session.replica.abort_update()
                session.stepper.skipped()

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """A refusal ends the life, not the loop: the next minibatch is drawn in the next life."""
        try:
            yield
        except (Cancelled, Refused) as end:
            reason = end.__cause__ if isinstance(end, Cancelled) else end
            if not isinstance(reason, Refused):
                raise
            assert self._session is not None
            self._session.replica.abort_update()

    def _need_session(self) -> Session[Any]:
        if self._session is None:
            raise UserError("draw a minibatch first: for x, y in learner.draw(...)")
        return self._session

    def _report(self, error: BaseException) -> None:
        """A bug (or bad input) ends the run everywhere, with this traceback first."""
        assert self._session is not None
        if isinstance(error, UserError):
            text = str(error)
        else:
            text = "".join(traceback.format_exception(error))
        try:
            self._session.client.tell("failed", traceback=text[-32768:])
        except Cancelled:
            return

    def _write_checkpoint(self, agreement: int, strategy: Parcel) -> None:
        assert self._keeper is not None and self._session is not None
        folder = self._keeper.write(agreement, strategy)
        self._session.client.tell("part", agreement=agreement, folder=str(folder), keep=self._keep)
