"""The base of strategies whose learners exchange models with some of the others."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
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

    The agent takes a snapshot x of the model (parameters plus pending deltas). An exchange yields a
    delta, which the thread adds in its next update: no step that is made meanwhile is lost, and
    computing never waits.

    **Committing.** A model is sent with notes of all work in it that the coordinator may not know:
    the sender's own, and work of others that it has reported without acknowledgement yet. The
    receiver reports the work in a model that it takes in, which then survives its trainer. When a
    member is gone, each of the others reports, after its last message, that it has nothing more of
    it (``Closed``); then the coordinator leases again what nobody has reported. So a minibatch is
    trained again only if no living model contains it. Two learners that die before either has
    exchanged with a third take with them what only they had.

    ``due`` and ``completed`` count exchanges. Subclasses choose partners, and how to mix.
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
        """Own work that is not known to be in another's model."""
        self._reports = WorkReports(replica)
        self._turned_away: dict[Address, None] = {}
        """Learners that were told ``Busy``, in that order: a set's depends on the process."""
        self._refused_by: set[Address] = set()
        """Learners that have said that they are busy."""
        self._unclosed: list[Address] = []
        self._draining = False
        self._ending = False
        self.due = 0
        self.completed = 0

    # What subclasses implement.

    @abstractmethod
    def _on_tick(self) -> None:
        """Handles a tick: an exchange is due."""

    @abstractmethod
    def _on_peer(self, message: Message[Any]) -> None:
        """Handles a message of another learner's agent."""

    @abstractmethod
    def _on_gone(self, who: Address) -> None:
        """Handles the loss of a member, after its last message."""

    @abstractmethod
    def _go_on(self) -> None:
        """Called after each message, to do what is due."""

    @abstractmethod
    def _sent_work(self) -> Ranges:
        """Own work in models that were sent and are not known to have been taken in."""

    # The learner's thread.

    def start(self) -> None:
        self.fabric.port(PORT, members=True)
        self.fabric.port(ENDED)
        self.fabric.spawn("agent", self._run)

    def enter(self, assignment: Assignment | None) -> bool:
        """Begins with the model of a learner that has entered already."""
        self._entered = join_dynamic(self.client, self._receive_state, lambda: 0)
        if self._entered:
            self.fabric.post(PORT, HasEntered())
        return self._entered

    def after_backward(self, sync_round: int, work: TrainedWork, *, accumulate: bool) -> None:
        self._examples += work.examples
        self._pace.trained(work.examples)

    def after_update(self) -> None:
        """Tells the agent when an exchange is due."""
        if self._examples >= self._pace.every:
            self._examples = 0
            self.fabric.post(PORT, Tick())

    def flush(self) -> None:
        """Makes the agent exchange until all own work is in others' models, too."""
        self.fabric.post(PORT, Drain())

    def finish(self, leader: Address | None) -> None:
        """Ends with the mean of all models."""
        if not self._entered:
            return
        self.fabric.post(PORT, End())
        self.fabric.receive(ENDED)
        self.replica.event("exchanges", due=self.due, completed=self.completed)
        self.replica.replace(self._gathering.finish(leader, self.replica.snapshot().vector))

    def consensus(self) -> Vector | None:
        """The mean of all learners' current models; at the end, of the final ones."""
        if self._gathering.final is not None:
            return self._gathering.final.copy()
        own = self.replica.export(optimizer=False).vectors["parameters"]
        mean, members, distance = self._gathering.mean(own)
        self.replica.event("consensus", members=members, distance=distance)
        return mean

    def restore(self, bundle: StateBundle) -> None:
        """Sets the parameters to the model of the checkpoint."""
        self.rounds = from_plain(ExchangeState, bundle.plain).rounds
        self.replica.replace(bundle.vectors["parameters"])

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
        """Handles a directive of the coordinator, or an order of the learner's thread."""
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
        """Reports that there is no more work of members that are gone."""
        while self._unclosed:
            self.client.tell(Closed(self._unclosed.pop()))

    def _turn_away(self, message: Message[Any]) -> None:
        """Answers ``Busy``; the sender may ask again after ``Free``."""
        message.release()
        self._turned_away[message.sender] = None
        self._tell(message.sender, Busy())

    def _free_all(self) -> None:
        while self._turned_away:
            who = next(iter(self._turned_away))
            del self._turned_away[who]
            self._tell(who, Free())

    def _take_model(self) -> tuple[Vector, Notes]:
        """A snapshot, and all work in it that the coordinator may not know, by owner."""
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
        self._turned_away.pop(who, None)
        self._refused_by.discard(who)
        self._on_gone(who)

    # Newcomers, validation and checkpoints.

    def _welcome(self, newcomer: Address) -> None:
        model, notes = self._take_model()
        try:
            plain = to_plain(NewcomerNotes(notes))
            send_state(self.fabric, newcomer, StateBundle(plain, {"parameters": model}))
        except Gone:
            return

    def _show(self, to: Address) -> None:
        model = self.replica.export(optimizer=False).vectors["parameters"] if self._in else None
        with suppress(Gone):
            self._gathering.show(to, model)

    def _cut(self, number: int) -> None:
        model, notes = self._take_model()
        plain = to_plain(ExchangeState(self.rounds))
        self._kept = (number, StateBundle(plain, {"parameters": model}))
        self.client.tell(SnapshotTaken(number, notes[self.fabric.address]))
