"""One learner's part in a parameter server: it pushes what it learnt, and pulls the model."""

from __future__ import annotations

from typing import Any

from unisono.coordinator.messages import (
    Commit,
    Continue,
    Directive,
    Return,
    SendState,
    SnapshotTaken,
    TakeSnapshot,
)
from unisono.errors import UserError
from unisono.fabric import (
    Address,
    Gone,
    MembersChanged,
    Message,
    TimedOut,
    Vector,
    from_plain,
    to_plain,
)
from unisono.pool.pool import Assignment
from unisono.pool.ranges import Ranges, merge
from unisono.strategies.base import Participant, Replica, StateBundle, TrainedWork
from unisono.strategies.engines.accumulators import make_accumulator
from unisono.strategies.engines.joining import join_dynamic
from unisono.strategies.engines.model_view import ModelView
from unisono.strategies.engines.pushes import Push, PushKind, ServerSettings
from unisono.strategies.engines.server_messages import (
    ENDED,
    FINAL,
    PORT,
    PULLED,
    SHOWN,
    Backup,
    Copies,
    CopiesWanted,
    Drain,
    Dropped,
    End,
    Ended,
    HasEntered,
    Moved,
    NewcomerState,
    OwnMessage,
    PullDone,
    Pulled,
    PushPiece,
    PushReady,
    Show,
)
from unisono.strategies.engines.shard_store import ShardStore
from unisono.strategies.engines.shards import Adder, bounds, runs
from unisono.strategies.engines.state_transfer import receive_bundle, send_bundle
from unisono.strategies.engines.witness import Witness

LATE = 5
"""Pushes dropped one after the other, after which a learner is said to be too slow."""


class ServerParticipant(Participant):
    """Updates out, parameters in.

    What ``push_every`` minibatches come to (``accumulators``) goes out as one push, cut into runs
    of shards. Each holder applies its run as it comes, and answers with what it has then. A change
    of the parameters is added; with gradients the shard takes a step, with the learner's own
    optimizer rebuilt on it and the learning rates that the push carries.

    Nobody waits for another learner; what is pulled may mix versions of different shards. The
    *staleness* of a push is the number of pushes applied to shard 0 between the pull that its
    first minibatch was computed at and its own application: W - 1 for W equal learners that wait
    for the reply, 2 W - 1 with overlap.

    With a ``bound`` the run of shard 0 goes first: its holder applies it or drops the whole push,
    before any other piece is on its way. The work of a dropped push goes back to the pool, and the
    learner pulls the newest model.

    A push is committed when all its pieces are applied and those in shards that its own learner
    holds have gone to another one. If the learner dies before, whoever has a piece of the push
    reports it: a minibatch that is in the model is never trained again, and a death between two
    pieces loses a part of one push.
    """

    def __init__(
        self, replica: Replica, settings: ServerSettings, averages_from: float | None
    ) -> None:
        super().__init__(replica)
        self._settings = settings
        local = settings.push is PushKind.CHANGE
        make_updater = (lambda values, _: Adder(values)) if local else replica.updater
        self._shard_store = ShardStore(replica, settings.shards, make_updater, averages_from)
        self._shard_store.holds_back = self._holds_back
        self._model_view = ModelView(self.fabric, self._shard_store, settings.shards)
        # The learner's thread.
        self._entered = False
        self._accumulator = make_accumulator(settings.push, replica)
        self._examples = 0
        self._minibatches = 0
        """Stepped on since the last push."""
        self._under_way = False
        self._idle = True
        """Whether others may have trained on since this learner pulled."""
        self._pulled_at = self._computed_at = 0
        """Versions of shard 0: in the model, and of the first minibatch that is not pushed."""
        self._final: Vector | None = None
        self._late = 0
        # The agent.
        self._number = self._pulls = 0
        """Of the last push, and of the last pull."""
        self._push: Push | None = None
        self._next: Push | None = None
        self._cutting: int | None = None
        self._passed = -1
        self._in = False
        self._to_welcome: list[Address] = []
        self._witness = Witness(self.client, self._shard_store, self._tell_committed)
        self._draining = False
        self._uncommitted_pushes = 0
        self._uncommitted = TrainedWork()
        """Applied, and perhaps only in shards that are here."""
        self._told: list[tuple[int, Ranges]] = []
        self._versions: dict[int, int] = {}
        """Which versions of these shards must be elsewhere, too, before that is committed."""
        self._kept: tuple[int, StateBundle] | None = None

    # The learner's thread.

    def start(self) -> None:
        """Spawns the agent."""
        self.fabric.port(PORT, members=True)
        for port in (PULLED, SHOWN, FINAL, ENDED):
            self.fabric.port(port)
        self.fabric.spawn("agent", self._run)

    def enter(self, assignment: Assignment | None) -> bool:
        """Begins with the model of one that is in already."""
        self._entered = join_dynamic(self.client, self._receive_state, lambda: 0)
        if self._entered:
            self._model = self.replica.parameters()
            self._pulled_at = self._shard_store.copies[0].version
            self.fabric.post(PORT, HasEntered())
        return self._entered

    def _check_bound(self) -> None:
        learners = len(self.fabric.members().addresses())
        least = self._settings.staleness(learners)
        if 0 < self._settings.bound < least:
            raise UserError(
                f"a staleness bound of {self._settings.bound} would drop every push: with "
                f"{learners} learners it is about {least}; give at least that, or 0 for none"
            )

    def before_minibatch(self) -> None:
        """Pulls first, if others have trained meanwhile: at the start, and after a pause."""
        if self._idle:
            self._idle = False
            self._begin(None, TrainedWork())
            self._pull(wait=True)

    def after_backward(self, sync_round: int, work: TrainedWork, *, accumulate: bool) -> None:
        """Counts the examples of the gradients."""
        self._examples += work.examples

    def before_update(self) -> bool:
        """Takes the minibatch in; with gradients the step is that of the shards."""
        if self._minibatches == 0:
            self._computed_at = self._pulled_at
        self._accumulator.add(self._examples)
        self._examples = 0
        self._minibatches += 1
        return self._accumulator.steps_locally

    def after_update(self) -> None:
        """Takes over what was pulled, and pushes when it is time.

        A learner that trains alone takes plain steps: shards make them one by one, without delay.
        """
        if self._under_way:
            self._pull(wait=False)
        plain = self._alone and not self._accumulator.steps_locally
        enough = 1 if plain else self._settings.push_every
        if self._minibatches >= enough and not self._under_way:
            self._begin_push()
            if plain or not self._settings.overlap:
                self._pull(wait=True)

    def flush(self) -> None:
        """Pushes what there is, and waits until it is applied."""
        if self._under_way:
            self._pull(wait=True)
        if self._minibatches:
            self._begin_push()
            self._pull(wait=True)
        self._idle = True
        self.fabric.post(PORT, Drain())

    def _begin_push(self) -> None:
        if self.rounds == 0:
            self._check_bound()  # All who are expected are here: work is given out after that.
        update = self._accumulator.take(self._shard_store.model, self._share(), self.rounds)
        self._minibatches = 0
        self._begin(update, self.replica.take_work())

    def _begin(self, update: Vector | None, work: TrainedWork) -> None:
        push = Push(
            number=0,
            update=update,
            work=work,
            rates=self.replica.learning_rates(),
            progress=self.replica.progress(),
            version=self._computed_at,
            missing=set(range(self._settings.shards)),
            decided=update is None or not self._settings.bound,
        )
        self._under_way = True
        self._next = push
        self.fabric.post(PORT, PushReady())

    @property
    def _alone(self) -> bool:
        """Whether the current minibatch belongs to the warm start."""
        return self.replica.progress() <= self._settings.warm_start

    def _share(self) -> float:
        """Of this learner in the model: all of it while it trains alone."""
        return 1.0 if self._alone else 1 / len(self.fabric.members().addresses())

    def _pull(self, *, wait: bool) -> None:
        began = self.fabric.now()
        try:
            self.fabric.receive(PULLED, timeout=None if wait else 0.0)
        except TimedOut:
            return
        if wait:
            self.wait_s += self.fabric.now() - began
        self._under_way = False
        self._pulled_at = self._shard_store.copies[0].version
        self._accumulator.pull(self._shard_store.model)

    def finish(self, leader: Address | None) -> None:
        """The leader collects the shards' model when all are done; they stay until it has."""
        if not self._entered:
            return
        if self._final is None:
            self._final = self._model_view.agree(leader)
        self.replica.replace(self._final)
        # Who leaves tells the coordinator nothing any more: there may soon be none.
        self.fabric.post(PORT, End())
        self.fabric.receive(ENDED)

    def consensus(self) -> Vector | None:
        """What the shards hand out: their parameters, or the running mean of them."""
        if not self._entered:
            return None
        whole = self.replica.export(optimizer=False).vectors["parameters"]
        shown = self._model_view.collect() if self._final is None else self._final
        whole.slice(0, len(shown)).assign(shown)
        return whole

    def restore(self, bundle: StateBundle) -> None:
        """The shards that this learner held, from a checkpoint."""
        state = self._shard_store.load(bundle)
        self.rounds, self._number = state.rounds, state.number

    def take_checkpoint(self) -> tuple[int, StateBundle] | None:
        """What the coordinator asked to keep."""
        kept, self._kept = self._kept, None
        return kept

    def _receive_state(self, donor: Address) -> None:
        self.replica.take_over(receive_bundle(self.fabric, donor))
        state = from_plain(NewcomerState, receive_bundle(self.fabric, donor).plain)
        self._shard_store.copies = list(state.copies)
        self._witness.gone.update(state.gone)

    # The agent.

    def _run(self) -> None:
        while True:
            self._handle(self.fabric.receive(PORT))
            if self._in:
                while self._to_welcome:
                    self._welcome(self._to_welcome.pop())
                self._witness.tell()
                self._commit()

    def _handle(self, message: Message[Any]) -> None:
        match message.body:
            case PushPiece():
                self._shard_store.serve(message)
            case Show():
                self._shard_store.show(message)
            case CopiesWanted():
                self._shard_store.give_copies(message)
            case Copies():
                self._shard_store.take_copies(message)
            case Pulled() | Moved() | Dropped():
                self._on_reply(message)
            case Backup():
                self._shard_store.take_backup(message)
            case MembersChanged(gone=gone):
                self._on_members(gone)
            case directive_or_own:
                self._obey(directive_or_own)

    def _obey(self, order: Directive | OwnMessage) -> None:
        """What the coordinator or the learner's thread wants."""
        match order:
            case PushReady():
                self._start()
            case HasEntered():
                self._shard_store.begin(self._model)
                self._in = True
            case SendState(newcomer):
                self._to_welcome.append(newcomer)
            case Drain():
                self._draining = True
            case TakeSnapshot(checkpoint):
                self._cutting = checkpoint
                self._cut_if_quiet()
            case Continue(keep):
                self._go_on(keep)
            case End():
                self._in = False
                self.fabric.post(ENDED, Ended())

    def _start(self) -> None:
        """Begins a push, unless one is under way, or all hold back for a checkpoint."""
        if self._push is None and self._next is not None and self._cutting is None:
            self._push, self._next = self._next, None
            if self._push.update is None:
                self._pulls += 1
                self._push.number = -self._pulls
            else:
                self._draining = False
                self._number += 1
                self._push.number = self._number
            self._began = self.fabric.now()
            self._send_pieces()

    def _send_pieces(self) -> None:
        """Sends what is missing and not on its way."""
        push = self._push
        if push is None:
            return
        view = self.fabric.members()
        on_its_way = {s for run in push.sent for s in range(*run)}
        wanted = push.missing - on_its_way
        if not push.decided:
            placed = runs(push.missing, self._settings.shards, view.addresses())
            first = next(run for run in placed if run[0] == 0)
            wanted = set(range(*first)) if 0 in wanted else set()
        for run, who in runs(wanted, self._settings.shards, view.addresses()).items():
            message = PushPiece(
                run=run,
                view=view.version,
                number=push.number,
                version=push.version,
                rates=tuple(push.rates),
                progress=push.progress,
                note=self._note(push),
                bound=0 if push.decided else self._settings.bound,
                passed=self._passed,
            )
            span = bounds(run, self._settings.shards, len(self._shard_store.model))
            piece = None if push.update is None else push.update.slice(*span)
            try:
                self.fabric.send(who, PORT, message, piece)
            except Gone:
                continue
            push.sent[run] = who

    def _on_reply(self, message: Message[Pulled | Moved | Dropped]) -> None:
        push, reply = self._push, message.body
        run = reply.run
        current = push is not None and reply.number == push.number
        if push is None or not current or push.sent.get(run) != message.sender:
            message.release()  # Of an earlier push, or of one who was asked before it moved.
            return
        del push.sent[run]
        if isinstance(reply, Pulled):
            self._shard_store.take(reply, message.vector)
            push.missing -= set(range(*run))
            push.decided = True
            if run[0] == 0:
                push.stale = reply.stale
        message.release()
        if isinstance(reply, Dropped):
            self._on_dropped(push, reply.stale)
        elif isinstance(reply, Pulled):
            self._send_pieces()
        if not push.missing:
            self._complete(push)

    def _complete(self, push: Push) -> None:
        self._push = None
        if push.update is not None:
            self._late = 0
            self.rounds += 1
            self.replica.recycle(push.update)
            self._uncommitted.add(push.work)
            self._uncommitted_pushes += 1
            self._versions = self._shard_store.versions()
            self.replica.event(
                "round",
                round=self.rounds - 1,
                time_s=self.fabric.now() - self._began,
                bytes=2 * push.update.nbytes,
                staleness=push.stale,
                weight=push.work.examples,
            )
        self.fabric.post(PULLED, PullDone())
        self._cut_if_quiet()

    def _on_dropped(self, push: Push, stale: int) -> None:
        """Its work goes back; what follows is only a pull."""
        self._late += 1
        self.client.tell(Return(push.work.note()))
        self.replica.record(dropped=push.work.note())
        late = self._late if self._late % LATE == 0 else 0
        self.replica.event("dropped", staleness=stale, bound=self._settings.bound, in_a_row=late)
        self._pulls += 1
        push.update, push.work, push.number, push.decided = None, TrainedWork(), -self._pulls, True
        push.missing, push.sent = set(range(self._settings.shards)), {}
        self._send_pieces()

    def _on_members(self, gone: tuple[Address, ...]) -> None:
        if self.fabric.address not in self.fabric.members().addresses():
            return  # It has left.
        self._witness.add(gone)
        self._shard_store.change_view()
        self._shard_store.retry()
        if self._push is not None:
            members = self.fabric.members().addresses()
            placed = runs(range(self._settings.shards), self._settings.shards, members)
            holders = {s: who for run, who in placed.items() for s in range(*run)}
            self._push.sent = {
                run: who
                for run, who in self._push.sent.items()
                if all(holders[s] == who for s in range(*run))
            }
            self._send_pieces()

    def _commit(self) -> None:
        """Tells of work that would survive this member."""
        if not self._uncommitted.ranges:
            return
        if self._uncommitted_pushes > 1 or (self._draining and self._push is None):
            self._shard_store.back_up(self._versions)
        if self._shard_store.survives(self._versions):
            note = self._uncommitted.note()
            self._told.append((self._tell_committed(self.fabric.address, note), note))
            self._uncommitted, self._uncommitted_pushes = TrainedWork(), 0

    def _note(self, push: Push) -> Ranges:
        """This learner's work that the coordinator may not know to be committed."""
        self._told = [(n, note) for n, note in self._told if self.client.is_pending(n)]
        told = [note for _, note in self._told]
        return merge(push.work.ranges, self._uncommitted.ranges, *told)

    def _tell_committed(self, owner: Address, note: Ranges) -> int:
        self.replica.record(notes={str(owner): note})
        return self.client.tell(Commit({owner: note}))

    def _welcome(self, newcomer: Address) -> None:
        state = NewcomerState(tuple(self._shard_store.copies), tuple(sorted(self._witness.gone)))
        bundle = self.replica.export(optimizer=False)
        parameters = bundle.vectors["parameters"]
        parameters.slice(0, len(self._shard_store.model)).assign(self._shard_store.model)
        try:
            send_bundle(self.fabric, newcomer, bundle)
            send_bundle(self.fabric, newcomer, StateBundle(to_plain(state)))
        except Gone:
            return

    # Checkpoints: all shards of one instant, in which no push is under way.

    def _holds_back(self, push: PushPiece) -> bool:
        """A push of one who has passed a checkpoint that this member has still to write."""
        return self._cutting is not None and push.passed >= self._cutting

    def _cut_if_quiet(self) -> None:
        if self._cutting is not None:
            if self._push is None:
                self.client.tell(SnapshotTaken(self._cutting, ()))
        else:
            self._start()

    def _go_on(self, keep: int | None) -> None:
        if self._cutting is None:
            return
        if keep == self._cutting:
            self._kept = (keep, self._shard_store.export(self.rounds, self._number))
        self._passed, self._cutting = self._cutting, None
        self._shard_store.retry()
        self._start()
