"""A member of a parameter server beside its learner: pushes under way, commits, checkpoints."""

from __future__ import annotations

from typing import Any

from unisono.coordinator.directives import (
    Continue,
    Directive,
    SendState,
    TakeSnapshot,
)
from unisono.coordinator.messages import PLAN, Commit, Return, SnapshotKept, SnapshotTaken
from unisono.fabric import Address, Gone, MembersChanged, Message, Vector, encoded_nbytes, to_plain
from unisono.pool.ranges import Ranges, merge
from unisono.strategies.base import Replica, StateBundle, TrainedWork
from unisono.strategies.engines.pushes import Push, ServerSettings
from unisono.strategies.engines.server_codec import PushCodec
from unisono.strategies.engines.server_messages import (
    ENDED,
    PORT,
    PULLED,
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
from unisono.strategies.engines.shards import Run, bounds, runs
from unisono.strategies.engines.state_transfer import send_state
from unisono.strategies.engines.witness import Witness

UNSENT = "unsent"
"""The vector of a checkpoint that holds what was rounded off and not pushed yet."""
LATE = 5
"""Pushes dropped one after the other, after which a learner is said to be too slow."""


class ServerAgent:
    """The activity of a member that receives everything.

    It serves the shards that are here, carries its own learner's pushes to all holders and sees
    that they are applied once, tells the coordinator what is committed, and takes part in
    checkpoints. The learner's thread hands a push over in ``ready`` and posts ``PushReady``; when
    the push is applied everywhere the agent posts ``PullDone``.
    """

    def __init__(self, replica: Replica, settings: ServerSettings, shard_store: ShardStore) -> None:
        self._replica = replica
        self._fabric = replica.fabric
        self._client = replica.client
        self._settings = settings
        self._shard_store = shard_store
        shard_store.holds_back = self._holds_back
        self.witness = Witness(self._client, shard_store, self._tell_committed)
        self.model: Vector | None = None
        """What the learner begins with; set before ``HasEntered``."""
        self.ready: Push | None = None
        """The learner's next push; set before ``PushReady``."""
        self.kept: tuple[int, StateBundle] | None = None
        """A checkpoint's number and this member's part of it, until the learner has taken it."""
        self.applied = 0
        """Pushes of this learner that were applied."""
        self.push_codec = PushCodec(settings.precision)
        self._pushes = self._pulls = self._late = 0
        self._push: Push | None = None
        self._began = 0.0
        self._cutting: TakeSnapshot | None = None
        self._has_cut = False
        self._cut: StateBundle | None = None
        """This member's part of the checkpoint, if the members have changed since it has cut."""
        self._passed = -1
        self._in = False
        self._to_welcome: list[Address] = []
        self._draining = False
        self._uncommitted_pushes = 0
        self._uncommitted = TrainedWork()
        """Applied, and perhaps only in shards that are here."""
        self._told: list[tuple[int, Ranges]] = []
        self._versions: dict[int, int] = {}
        """Which versions of these shards must be elsewhere, too, before that is committed."""

    def run(self) -> None:
        """Handles messages until the run is abandoned."""
        while True:
            self._handle(self._fabric.receive(PORT))
            if self._in:
                while self._to_welcome:
                    self._welcome(self._to_welcome.pop())
                self.witness.tell()
                self._commit()
                self._cut_if_quiet()

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
                assert self.model is not None
                self._shard_store.begin(self.model)
                self._in = True
            case SendState(newcomer):
                self._to_welcome.append(newcomer)
            case Drain():
                self._draining = True
            case TakeSnapshot() as order:
                self._cutting, self._has_cut = order, False
            case Continue(keep):
                self._go_on(keep)
            case End():
                self._in = False
                self._fabric.post(ENDED, Ended())

    def _start(self) -> None:
        """Begins a push, unless one is under way, or all hold back for a checkpoint."""
        if self._push is None and self.ready is not None and self._cutting is None:
            self._push, self.ready = self.ready, None
            if self._push.update is None:
                self._pulls += 1
                self._push.number = -self._pulls
            else:
                self._draining = False
                self._pushes += 1
                self._push.number = self._pushes
                self.push_codec.begin(self._push.update)
            self._began = self._fabric.now()
            self._send_pieces()

    def _send_pieces(self) -> None:
        """Sends what is missing and not on its way."""
        push = self._push
        if push is None:
            return
        view = self._fabric.members()
        if self._fabric.address not in view.addresses():
            return  # The view with this member has yet to come; the push goes out with it.
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
                base=self._shard_store.pull_codec.base(run, who),
                initial=self._shard_store.is_initial(run),
            )
            piece = None if push.update is None else push.update.slice(*self._span(run))
            if piece is not None and who != self._fabric.address:
                piece = self.push_codec.encode(piece)
            try:
                self._fabric.send(who, PORT, message, piece)
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
            if push.update is not None:
                span = self._span(run)
                travelled = message.sender != self._fabric.address
                self.push_codec.applied(push.update.slice(*span), span, travelled=travelled)
            self._shard_store.take(reply, message.sender, message.vector)
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

    def _span(self, run: Run) -> tuple[int, int]:
        return bounds(run, self._settings.shards, len(self._shard_store.model))

    def _complete(self, push: Push) -> None:
        self._push = None
        if push.update is not None:
            self._late = 0
            self.applied += 1
            self._replica.recycle(push.update)
            self._uncommitted.add(push.work)
            self._uncommitted_pushes += 1
            self._versions = self._shard_store.versions()
            self._replica.event(
                "round",
                round=self.applied - 1,
                time_s=self._fabric.now() - self._began,
                bytes=2 * encoded_nbytes(push.update, self._settings.precision),
                staleness=push.stale,
                weight=push.work.examples,
            )
        self._fabric.post(PULLED, PullDone())
        self._start()

    def _on_dropped(self, push: Push, stale: int) -> None:
        """Its work goes back; what follows is only a pull."""
        self._late += 1
        self._client.tell(Return(push.work.note()))
        self._replica.record(dropped=push.work.note())
        late = self._late if self._late % LATE == 0 else 0
        self._replica.event("dropped", staleness=stale, bound=self._settings.bound, in_a_row=late)
        self._pulls += 1
        push.update, push.work, push.number, push.decided = None, TrainedWork(), -self._pulls, True
        push.missing, push.sent = set(range(self._settings.shards)), {}
        self._send_pieces()

    def _on_members(self, gone: tuple[Address, ...]) -> None:
        if self._fabric.address not in self._fabric.members().addresses():
            return  # It has left.
        self.witness.add(gone)
        if self._has_cut and self._cut is None:
            self._cut = self._export()
        self._shard_store.change_view()
        self._shard_store.retry()
        if self._push is not None:
            members = self._fabric.members().addresses()
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
            self._told.append((self._tell_committed(self._fabric.address, note), note))
            self._uncommitted, self._uncommitted_pushes = TrainedWork(), 0

    def _note(self, push: Push) -> Ranges:
        """This learner's work that the coordinator may not know to be committed."""
        self._told = [(n, note) for n, note in self._told if self._client.is_pending(n)]
        told = [note for _, note in self._told]
        return merge(push.work.ranges, self._uncommitted.ranges, *told)

    def _tell_committed(self, owner: Address, note: Ranges) -> int:
        self._replica.record(notes={str(owner): note})
        return self._client.tell(Commit({owner: note}))

    def _welcome(self, newcomer: Address) -> None:
        store = self._shard_store
        gone = tuple(sorted(self.witness.gone))
        state = NewcomerState(tuple(store.copies), store.began, gone)
        bundle = self._replica.export(optimizer=False)
        parameters = bundle.vectors["parameters"]
        parameters.slice(0, len(store.model)).assign(store.model)
        try:
            send_state(self._fabric, newcomer, bundle, StateBundle(to_plain(state)))
        except Gone:
            return

    # Checkpoints: all shards of one instant, in which no push is under way.

    def _holds_back(self, push: PushPiece) -> bool:
        """A push of one who has passed a checkpoint that this member has still to write."""
        cutting = self._cutting
        return cutting is not None and (
            push.passed >= cutting.checkpoint or push.view > cutting.view
        )

    def _cut_if_quiet(self) -> None:
        """Tells what is applied and not committed, when all that is to be here is here."""
        cutting = self._cutting
        if cutting is None or self._has_cut or self._push is not None:
            return
        if self._shard_store.complete and self._fabric.members().version >= cutting.view:
            self._has_cut = True
            self._client.tell(SnapshotTaken(cutting.checkpoint, self._uncommitted.note()))

    def _export(self) -> StateBundle:
        kept = self._shard_store.export(self.applied)
        if self.push_codec.unsent is not None:
            kept.vectors[UNSENT] = self.push_codec.unsent.copy()
        return kept

    def _go_on(self, keep: int | None) -> None:
        if self._cutting is None:
            return
        number = self._cutting.checkpoint
        if keep == number:
            self.kept = (number, self._cut or self._export())
            if self._fabric.address.serves:
                self._fabric.post(PLAN, SnapshotKept())
        self._passed, self._cutting, self._has_cut, self._cut = number, None, False, None
        self._shard_store.retry()
        self._start()
