"""What all learners have in common that exchange models with some of the others."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from unisono.coordinator.directives import Directive, SendState, TakeSnapshot
from unisono.coordinator.messages import Closed, SnapshotTaken
from unisono.coordinator.output import STRATEGY
from unisono.fabric import (
    Address,
    Gone,
    MembersChanged,
    Message,
    Precision,
    Vector,
    from_plain,
    to_plain,
)
from unisono.pool.pool import Assignment
from unisono.pool.ranges import Notes, Ranges, merge, merge_notes
from unisono.strategies.base import Participant, Replica, StateBundle, TrainedWork, check_finite
from unisono.strategies.engines.exchange_pace import ExchangePace
from unisono.strategies.engines.gather import ModelGather, ShowModel
from unisono.strategies.engines.gossip_messages import (
    ENDED,
    PORT,
    Busy,
    Drain,
    End,
    Ended,
    ExchangeState,
    Free,
    HasEntered,
    NewcomerNotes,
    OwnMessage,
    PeerMessage,
    Tick,
    TookOver,
)
from unisono.strategies.engines.joining import join_dynamic
from unisono.strategies.engines.pair_codec import PairCodec
from unisono.strategies.engines.state_transfer import receive_state, send_state
from unisono.strategies.engines.work_reports import WorkReports


class GossipParticipant(Participant):
    """One learner's part: its thread trains, its agent exchanges models beside that.

    The agent takes a snapshot x of the model (parameters plus pending deltas), and what comes of an
    exchange is a delta that the thread adds in its next update: no step that is made meanwhile is
    lost, and computing waits for nothing.

    **Committing.** A model travels with notes of all work in it that the coordinator may not know
    of: the learner's own, and what it took in from others and told of without being heard yet.
    Whoever takes a model in tells of the work in it: that is in state which survives its trainer
    then. Of a member that is gone, each tells, after the last word of it, that there is nothing
    more to come; then the coordinator gives out again what nobody has told of. So a minibatch is
    trained again only if no living model contains it. Two that die before either has exchanged with
    a third take with them what only they had.

    ``due`` and ``completed`` count exchanges: those that should have been by now, and those that
    were. A subclass says with whom this learner exchanges, and what moves it.
    """

    def __init__(
        self, replica: Replica, every: int | str, least: int, precision: Precision
    ) -> None:
        super().__init__(replica)
        self._pace = ExchangePace(every, least, self.fabric)
        self._codec = PairCodec(precision)
        self._examples = 0
        self._gathering = ModelGather(self.fabric, STRATEGY)
        self._entered = False
        self._in = False
        """As ``_entered``, for the agent."""
        self._open = TrainedWork()
        """Trained, and in no other's model as far as is known."""
        self._reports = WorkReports(replica)
        self._turned_away: set[Address] = set()
        """Those who were told that this learner is busy."""
        self._refused_by: set[Address] = set()
        """Those who are busy as far as is known."""
        self._unclosed: list[Address] = []
        self._draining = False
        self._ending = False
        self._kept: tuple[int, StateBundle] | None = None
        self.due = 0
        self.completed = 0

    # What the subclasses say.

    @abstractmethod
    def _on_tick(self) -> None:
        """It is time for an exchange."""

    @abstractmethod
    def _on_peer(self, message: Message[Any]) -> None:
        """Another learner's agent has sent something."""

    @abstractmethod
    def _on_gone(self, who: Address) -> None:
        """A member is gone, and its last message has been received."""

    @abstractmethod
    def _go_on(self) -> None:
        """What is due after each message."""

    @abstractmethod
    def _sent_work(self) -> Ranges:
        """Own work in models that were sent, and are not known to have been taken in."""

    # The learner's thread.

    def start(self) -> None:
        self.fabric.port(PORT, members=True)
        self.fabric.port(ENDED)
        self.fabric.spawn("agent", self._run)

    def enter(self, assignment: Assignment | None) -> bool:
        """Begins with the model of one that is in already."""
        self._entered = join_dynamic(self.client, self._receive_state, lambda: 0)
        if self._entered:
            self.fabric.post(PORT, HasEntered())
        return self._entered

    def after_backward(self, sync_round: int, work: TrainedWork, *, accumulate: bool) -> None:
        self._examples += work.examples
        self._pace.trained(work.examples)

    def after_update(self) -> None:
        """Lets the agent know when it is time."""
        if self._examples >= self._pace.every:
            self._examples = 0
            self.fabric.post(PORT, Tick())

    def flush(self) -> None:
        """From now on the agent exchanges until all that was trained is in others' models, too."""
        self.fabric.post(PORT, Drain())

    def finish(self, leader: Address | None) -> None:
        """The mean of all models, which all end with."""
        if not self._entered:
            return
        self.fabric.post(PORT, End())
        self.fabric.receive(ENDED)
        self.replica.event("exchanges", due=self.due, completed=self.completed)
        self.replica.replace(self._gathering.finish(leader, self.replica.snapshot().vector))

    def consensus(self) -> Vector | None:
        """The mean of the models that the living have now, or ended with."""
        if self._gathering.final is not None:
            return self._gathering.final.copy()
        own = self.replica.export(optimizer=False).vectors["parameters"]
        mean, members, distance = self._gathering.mean(own)
        self.replica.event("consensus", members=members, distance=distance)
        return mean

    def restore(self, bundle: StateBundle) -> None:
        """The model at the cut of a checkpoint."""
        self.rounds = from_plain(ExchangeState, bundle.plain).rounds
        self.replica.replace(bundle.vectors["parameters"])

    def take_checkpoint(self) -> tuple[int, StateBundle] | None:
        kept, self._kept = self._kept, None
        return kept

    def _receive_state(self, donor: Address) -> None:
        (bundle,) = receive_state(self.fabric, donor, 1)
        notes = from_plain(NewcomerNotes, bundle.plain).notes
        self.replica.take_over(bundle)
        self.fabric.post(PORT, TookOver(notes))

    # The agent.

    def _run(self) -> None:
        while True:
            self._handle(self.fabric.receive(PORT))
            self._go_on()

    def _handle(self, message: Message[Any]) -> None:
        match message.body:
            case MembersChanged(gone=gone):
                for address in gone:
                    self._forget(address)
            case ShowModel():
                self._show(message.sender)
            case Free():
                self._refused_by.discard(message.sender)
            case body if message.sender == self.fabric.address or isinstance(body, Directive):
                self._obey(body)
            case _:
                self._on_peer(message)

    def _obey(self, order: Directive | OwnMessage) -> None:
        """What the coordinator or the learner's thread wants."""
        match order:
            case Tick():
                self._draining = False
                self._refused_by.clear()
                self._on_tick()
            case Drain():
                self._draining = True
                self._open.add(self.replica.take_work())
            case TookOver(notes):
                self._reports.report(notes)
            case HasEntered():
                self._in = True
            case SendState(newcomer):
                self._welcome(newcomer)
            case TakeSnapshot(checkpoint):
                self._cut(checkpoint)
            case End():
                self._ending = True

    def _end(self) -> None:
        self._in = False
        self.fabric.post(ENDED, Ended())

    def _tell_closed(self) -> None:
        """There is nothing more to come of those who are gone."""
        while self._unclosed:
            self.client.tell(Closed(self._unclosed.pop()))

    def _turn_away(self, message: Message[Any]) -> None:
        """The sender may ask again when it is told so."""
        message.release()
        self._turned_away.add(message.sender)
        self._tell(message.sender, Busy())

    def _free_all(self) -> None:
        while self._turned_away:
            self._tell(self._turned_away.pop(), Free())

    def _take_model(self) -> tuple[Vector, Notes]:
        """The model, and all work in it that the coordinator may not know of, by owner."""
        snapshot = self.replica.snapshot()
        check_finite(self.replica, snapshot.vector, self.rounds)
        self._open.add(snapshot.work)
        mine = merge(self._open.ranges, self._sent_work())
        notes = merge_notes({self.fabric.address: mine}, self._reports.unacknowledged)
        return snapshot.vector, notes

    def _tell(self, to: Address, body: PeerMessage, vector: Vector | None = None) -> bool:
        try:
            self.fabric.send(to, PORT, body, vector)
        except Gone:
            return False
        return True

    def _forget(self, who: Address) -> None:
        self._unclosed.append(who)
        self._reports.member_gone()
        self._codec.forget(who)
        self._turned_away.discard(who)
        self._refused_by.discard(who)
        self._on_gone(who)

    # For others, and for later.

    def _welcome(self, newcomer: Address) -> None:
        model, notes = self._take_model()
        try:
            plain = to_plain(NewcomerNotes(notes))
            send_state(self.fabric, newcomer, StateBundle(plain, {"parameters": model}))
        except Gone:
            return

    def _show(self, to: Address) -> None:
        model = self.replica.export(optimizer=False).vectors["parameters"] if self._in else None
        try:
            self._gathering.show(to, model)
        except Gone:
            return

    def _cut(self, number: int) -> None:
        model, notes = self._take_model()
        plain = to_plain(ExchangeState(self.rounds))
        self._kept = (number, StateBundle(plain, {"parameters": model}))
        self.client.tell(SnapshotTaken(number, notes[self.fabric.address]))
