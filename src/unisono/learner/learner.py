"""The object in the user's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from unisono.coordinator.messages import Stop
from unisono.errors import ProcessLost, UserError
from unisono.fabric import Cancelled, Fabric
from unisono.learner.arguments import (
    check_inside,
    checkpoint_folder,
    chosen_optimizers,
    chosen_strategy,
    event_fields,
    warn_of_few_rounds,
    whole_number,
)
from unisono.learner.backward_pass import BackwardPass
from unisono.learner.captured_step import CapturedStep
from unisono.learner.checkpointer import Checkpointer, Stateful
from unisono.learner.data_feed import DataFeed, as_source, make_feed
from unisono.learner.draw import Draw, Draws, Stream
from unisono.learner.log import METRICS, LearnerLog
from unisono.learner.meter import Meter
from unisono.learner.placement import address_at, find_placement
from unisono.learner.planner import Minibatch
from unisono.learner.processes import Processes
from unisono.learner.progress import Progress
from unisono.learner.rejoiner import Rejoiner, reason_of
from unisono.learner.session import Session
from unisono.learner.slices import Slices
from unisono.learner.storage import ModelStorage
from unisono.learner.task import Task
from unisono.learner.update_hooks import UpdateHooks
from unisono.output import tell
from unisono.strategies.base import StateBundle, Strategy, check_servers, describe


class Learner:
    """One learner of a run, around your own model, optimizer and loop.

    Args:
        model: your model, on its device.
        optimizer: your optimizer, or several that together make one update.
        strategy: how learners share what they learn: a name or an instance. Without one: ``solo``
            for one learner, ``averaging`` for more.
        epochs: how many epochs a loop with one ``draw`` per epoch will have. Without it ``draw`` is
            called once, with all epochs.
        seed: for the order of the data; the same for all learners.
        prefetch: minibatches to load ahead, in the background.
        checkpoints: a directory for checkpoints and ``metrics.jsonl``, the events of the run.
        checkpoint_every: examples (of all learners) between checkpoints; 0: once per epoch.
        keep: how many checkpoints to keep.
        resume: continue from the newest complete checkpoint, if there is one.
        extra_state: other objects whose state belongs in a checkpoint: schedulers, a GradScaler.
        log: a file for what this learner trained and what was averaged, in JSON lines.
        quiet: print nothing at the start; otherwise learner 0 prints what the strategy does.
        reduce_gradients: called after each backward pass, before the strategy sees the gradients.
        slices: whether processes of a learner draw slices; False: whole minibatches (split models).
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Learner:
        """In further processes of a learner: one that computes slices, which is built on this."""
        if cls is Learner and Slices.from_environment().rank > 0:
            cls = import_module("unisono.learner.helper_process").HelperProcess
        return super().__new__(cls)

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        strategy: str | Strategy | None = None,
        *,
        epochs: int | None = None,
        seed: int = 0,
        prefetch: int = 2,
        checkpoints: Path | str | None = None,
        checkpoint_every: int = 0,
        keep: int = 2,
        resume: bool = False,
        extra_state: Mapping[str, Stateful] | None = None,
        log: Path | str | None = None,
        quiet: bool = False,
        reduce_gradients: Callable[[], None] = lambda: None,
        slices: bool = True,
    ) -> None:
        self._placement = find_placement()
        self.number = self._placement.number
        """Which learner this is, from 0."""
        self.learners = self._placement.learners
        """How many learners the run began with."""
        self.strategy: Strategy = chosen_strategy(strategy, self.learners)
        if self._placement.serves:
            check_servers(self.strategy)
        self.model = model
        self._updates = UpdateHooks(chosen_optimizers(model, optimizer), self._need_rejoiner)
        self._optimizers, self._guard = self._updates.optimizers, self._updates.guard
        self._storage = ModelStorage(model)
        self._draws = Draws(epochs)
        self._seed = whole_number("seed", seed)
        self._prefetch = whole_number("prefetch", prefetch, least=0)
        self._checkpoints = checkpoint_folder(checkpoints, resume=resume)
        self._checkpoint_every = whole_number("checkpoint_every", checkpoint_every, least=0)
        self._keep = whole_number("keep", keep, least=1)
        self._resume = resume
        self._extra_state = dict(extra_state or {})
        self._processes = Processes(self._placement, model, self._extra_state, split=slices)
        self._log = None if log is None else LearnerLog(Path(log))
        self._quiet = quiet
        self._checkpointer: Checkpointer | None = None
        self._restored_state: list[StateBundle] = []
        self._feed: DataFeed | None = None
        self._stream: Stream | None = None
        self._stopped = False  # only where nothing is shared, and a stop ends the loop at once
        self._progress: Progress | None = None
        self._rejoiner: Rejoiner | None = None
        self._inside = False
        self.meter = Meter()
        self._backward_pass = BackwardPass(
            self._updates, self._processes, self.meter, reduce_gradients, self._placement
        )

    # The loop.

    def __enter__(self) -> Learner:
        self._inside = True
        self._optimizers.watch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._optimizers.unwatch()
        self._inside = False
        error = self._processes.reason(error)
        try:
            if self._rejoiner is not None:
                self._rejoiner.end(error)
        except Cancelled as end:
            error = end
        finally:
            self._close()
        if isinstance(error, Cancelled | ProcessLost):
            reason = reason_of(error)
            raise reason from reason.__cause__

    def draw(
        self,
        source: Any,
        epochs: int | None = None,
        batch_size: int | None = None,
        *,
        minibatches: int | None = None,
    ) -> Iterator[Any]:
        """Minibatches of a DataLoader, a dataset or an iterable, until all epochs are trained.

        Each minibatch goes to one learner. The order is the same for every number of learners:
        shuffled anew each epoch; for a DataLoader with ``shuffle=False``, the dataset's; for one
        with a sampler, the sampler's. An iterable is read by every learner from its beginning, and
        must come in the same order each time (``docs/howto/iterable_data.md``). What a
        dataset draws at random in a DataLoader's workers depends on seed and position alone.
        Without workers it draws from the generators of this process, as your model does: then only
        ``prefetch=0`` keeps a run repeatable.

        A loop over epochs says how many there will be and draws once in each::

            with unisono.Learner(model, optimizer, epochs=10) as learner:
                for epoch in range(10):
                    for x, y in learner.draw(loader):
                        ...

        After a resume, draws of epochs that were trained before are empty. What is left of an epoch
        after ``break`` is drawn with the next one.

        To end all learners' loops early, call ``stop()``. ``break`` out of a single ``draw`` ends
        this learner's part alone: it leaves the run, and what it had not shared is trained by the
        others; ``is_leader`` is then true on the last to leave.

        Args:
            source: a DataLoader, a dataset with ``__len__`` and ``__getitem__``, or an iterable
                of examples.
            epochs: passes over the data, by default 1; not with ``epochs`` of the learner.
            batch_size: examples a minibatch, for what is no DataLoader.
            minibatches: how many an epoch has, for an iterable without a length.
        """
        check_inside(self._inside)
        all_epochs, epoch = self._draws.next(source, epochs)
        if self._stream is None:
            self._storage.begin()
            # Fork the workers before there are connections that they would inherit.
            data = as_source(source, batch_size, minibatches)
            feed = self._feed = make_feed(
                data, all_epochs, self._seed, self._placement, self._processes.slices
            )
            self._stream = Stream(self._minibatches(feed), feed.positions.epoch, self._advance)
        return Draw(self._stream.take(epoch))

    def stop(self) -> None:
        """Ends the loops of all learners early, for example when validation gets no better.

        No more minibatches are handed out. Those that learners have are still trained, so that all
        end with the same model (``averaging``: up to four more rounds). Then the loops end as after
        the last epoch, and ``is_leader`` is true on one learner. A checkpoint can be resumed.
        """
        rejoiner = self._need_rejoiner()
        with rejoiner.surviving():
            rejoiner.session.client.tell(Stop())
        self._stopped = rejoiner.session.shares_nothing

    def scheduler(self, optimizer: Optimizer, factor: Callable[[float], float]) -> LambdaLR:
        """A scheduler by ``progress``: the optimizer's own rate times ``factor(progress)``.

        A scheduler that counts steps does not reach its end, because each learner takes only its
        share of them. This ``torch.optim.lr_scheduler.LambdaLR`` uses the progress of the run
        whenever ``step()`` is called, as often as you like. It has no state for checkpoints::

            scheduler = learner.scheduler(optimizer, lambda progress: 0.1**progress)
            for x, y in learner.draw(loader, epochs=10):
                learner.step(criterion(model(x), y))
                scheduler.step()
        """
        return LambdaLR(optimizer, lambda step: factor(self.progress))

    def backward(self, loss: torch.Tensor, *, accumulate: bool = False) -> None:
        """``loss.backward()``; afterwards ``.grad`` is what the optimizer should step with.

        With ``accumulate`` more gradients follow before the next ``optimizer.step()``; strategies
        that share gradients do so after the last.
        """
        self._backward_pass.run(loss, accumulate=accumulate)

    def step(self, loss: torch.Tensor) -> None:
        """``backward``, ``optimizer.step()`` and ``optimizer.zero_grad()``."""
        self.backward(loss)
        self._optimizers.step()
        self._optimizers.clear_gradients()

    def capture(
        self,
        loss: Callable[..., torch.Tensor],
        *,
        before_update: Callable[[], object] = lambda: None,
    ) -> CapturedStep:
        """A function that does ``step(loss(*minibatch))``, on a GPU by replaying CUDA graphs.

        It returns the loss, detached::

            train = learner.capture(lambda x, y: criterion(model(x), y))
            for x, y in learner.draw(loader):
                train(x.cuda(non_blocking=True), y.cuda(non_blocking=True))

        Args:
            loss: from the tensors of a minibatch to its mean loss, without reading from the device.
            before_update: called between backward pass and update, for example to clip gradients.
        """
        return CapturedStep(self.model, self._backward_pass, loss, before_update)

    def every(self, *, examples: int) -> bool:
        """Whether, since the last call, this learner trained past a multiple of ``examples``.

        Counted over all learners in the order of time, so it is true on one learner only.
        """
        return self._progress is not None and self._progress.every(examples)

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """A context in which the model holds the consensus in place of its own parameters."""
        if self._session is None or self._rejoiner is None:
            yield self.model
            return
        with self._session.replica.showing(self._rejoiner.consensus()):
            yield self.model

    @property
    def progress(self) -> float:
        """The share of all minibatches that were handed out so far, 0 to 1; it never decreases.

        Static sharding: the same on all learners at the same step of a round.
        """
        return 0.0 if self._progress is None else self._progress.progress

    @property
    def members(self) -> int:
        """How many learners are in the run now. Static sharding: those of the current round."""
        return self.learners if self._progress is None else self._progress.members

    @property
    def epoch(self) -> int:
        """The epoch that the run was in when the current minibatch was handed out, from 0."""
        return 0 if self._progress is None else self._progress.epoch

    @property
    def is_leader(self) -> bool:
        """After the loop: whether this is the one learner that should save the model.

        After a ``break`` this leaves the run, and is true on the last learner to leave.
        """
        if self._rejoiner is None or self._session is None:
            return False
        left = self._stream is not None and self._stream.left
        if left and self._draws.is_single and self._inside:
            self._rejoiner.leave_early()
        return self._session.stepper.is_leader or self._rejoiner.leads

    def event(self, name: str, **fields: Any) -> None:
        """Adds a line to ``checkpoints/metrics.jsonl``; ``unisono report`` draws its numbers."""
        if self._inside and self._rejoiner is not None and self._progress is not None:
            told = {"global_examples": self._progress.examples, **event_fields(name, fields)}
            with self._rejoiner.surviving():
                self._rejoiner.session.replica.event(name, **told)

    @property
    def process_group(self) -> Any:
        """The ``torch.distributed`` group of this learner's processes; process 0 is the learner."""
        return self._processes.process_group

    @property
    def bytes_sent(self) -> int:
        """Bytes of vectors that this learner has sent, in this incarnation."""
        return 0 if self._session is None else self._session.fabric.bytes_sent

    @property
    def links(self) -> list[dict[str, Any]]:
        """What this learner has sent to each of the others, in this incarnation."""
        return [] if self._session is None else self._session.links

    @property
    def skipped(self) -> int:
        """Steps that were not taken because they were not finite."""
        return self._guard.skipped

    @property
    def rounds(self) -> int:
        """Sync rounds so far."""
        return 0 if self._session is None else self._session.participant.rounds

    def describe(self) -> list[str]:
        """What is shared, and who waits for whom."""
        return describe(self.strategy, self.learners)

    @property
    def _session(self) -> Session[Any] | None:
        return None if self._rejoiner is None else self._rejoiner.current

    def _advance(self, minibatch: Minibatch) -> None:
        assert self._progress is not None
        self._progress.advance(minibatch)

    def _minibatches(self, feed: DataFeed) -> Iterator[tuple[Minibatch, Any]]:
        task = self._task(feed)
        if self._resume and self._checkpointer is not None:
            task, self._restored_state = self._checkpointer.restore(task)
            self._processes.tell_state()
        reached = max((stop for _, stop in task.committed), default=0)
        progress = self._progress = Progress(feed.positions, reached)
        if self.number == 0 and not self._quiet:
            tell(*self.describe()[: None if self.learners > 1 else 1])
            warn_of_few_rounds(self.strategy, self.learners, task.total, task.batch_size)
        make = partial(self._make_session, task)
        rejoiner = self._rejoiner = Rejoiner(self._placement, make, self._join, self._before_rejoin)
        while True:
            check_inside(self._inside)
            self._end_iteration(rejoiner, progress)
            if self._stopped or rejoiner.is_asked_to_leave:
                rejoiner.leave_early()
                break
            found = rejoiner.next()
            if found is None:
                if not rejoiner.session.stepper.stopped:
                    progress.finish()
                break
            self._processes.tell(feed, found[0], restarted=self._optimizers.has_no_state)
            yield found
        self._processes.tell(feed, None, finished=progress.progress == 1.0)
        self._report(rejoiner, progress)

    def _task(self, feed: DataFeed) -> Task[Any]:
        positions = feed.positions
        model = self._storage.fingerprint()
        every = 0
        if self._checkpoints is not None:
            about = {
                "strategy": repr(self.strategy),
                "data": ", ".join(filter(None, [positions.describe(), feed.fingerprint])),
                "model": model,
            }
            self._checkpointer = Checkpointer(
                self._checkpoints,
                address_at(self._placement),
                self.number - self.learners if self._placement.serves else self.number,
                self.model,
                self._optimizers,
                self._extra_state,
                about,
                has_shards=self.strategy.has_shards,
            )
            steps = max(1, self._checkpoint_every // positions.batch_size)
            every = steps if self._checkpoint_every else positions.per_epoch
        return Task(
            total=positions.total,
            batch_size=positions.batch_size,
            load=feed.load,
            examples=feed.count,
            fingerprint=f"model {model}, {positions.describe()}",
            checkpoint_every=every,
            on_checkpoint=self._write_checkpoint,
            on_drop=self._optimizers.clear_gradients,
            prefetch=self._prefetch,
            announce=self._processes.announcing(feed),
            window=feed.window,
            metrics="" if self._checkpoints is None else str(self._checkpoints / METRICS),
            single=self.learners == 1,
            machine=(self._placement.host, self._storage.device),
        )

    def _make_session(self, task: Task[Any], fabric: Fabric) -> Session[Any]:
        fabric.limit_vectors(self._storage.longest_vector)
        return Session(
            fabric,
            self.strategy,
            self._storage,
            self._optimizers,
            task,
            timeout=self._placement.timeout,
            log=self._log,
        )

    def _join(self, session: Session[Any]) -> None:
        if self._restored_state:
            session.participant.restore_parts(self._restored_state)
            self._restored_state = []
        self.meter.start(session)
        is_new = session.enroll()
        if is_new and self._checkpointer is not None:
            self._checkpointer.begin(resume=self._resume)
            if not self._quiet:
                session.replica.event("strategy", lines=self.describe())
        session.stepper.start()

    def _before_rejoin(self) -> None:
        """Drops what was under way in the last incarnation; others will train it."""
        self._optimizers.clear_gradients()
        if self._feed is not None:
            self._feed.forget()
        self._processes.forget()

    def _close(self) -> None:
        """Closes everything; the workers are stopped first, to wake threads that wait for them."""
        if self._feed is not None:
            self._feed.stop()
        self._placement.close()
        if self._feed is not None:
            self._feed.close()
        if self._log is not None:
            self._log.close()

    def _end_iteration(self, rejoiner: Rejoiner, progress: Progress) -> None:
        if progress.current is None:
            return
        session = rejoiner.session
        with rejoiner.surviving():
            if self._optimizers.half_done:
                self._optimizers.finish_update()
            self._updates.notice_skip(session)
        self._guard.check(self.number)
        if not progress.current.stand_in:
            assert self._feed is not None
            if self.meter.trained(self._feed.count(progress.current)):
                self._report(rejoiner, progress)

    def _report(self, rejoiner: Rejoiner, progress: Progress) -> None:
        if not self._placement.serves:
            rate = self._optimizers.learning_rate()
            with rejoiner.surviving():
                self.meter.report(progress.progress, progress.examples, rate)

    def _need_rejoiner(self) -> Rejoiner:
        check_inside(self._inside)
        if self._rejoiner is None:
            raise UserError("draw a minibatch first: for x, y in learner.draw(...)")
        return self._rejoiner

    def _write_checkpoint(self, sync_round: int, strategy: StateBundle) -> None:
        assert self._checkpointer is not None and self._session is not None
        self._session.client.tell(self._checkpointer.write_part(sync_round, strategy, self._keep))
