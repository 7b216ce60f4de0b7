"""Exchanges of two: the engine of strategies whose learners mix in pairs, beside computing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from unisono.coordinator.messages import Closed, Directive, SendState, SnapshotTaken, TakeSnapshot
from unisono.coordinator.output import STRATEGY
from unisono.coordinator.pace import OVERHEAD
from unisono.fabric import (
    Address,
    Fabric,
    Gone,
    MembersChanged,
    Message,
    Precision,
    Rejected,
    TypedPort,
    Vector,
    from_plain,
    to_plain,
)
from unisono.pool.pool import Assignment
from unisono.pool.ranges import Notes, Ranges, merge, merge_notes
from unisono.strategies.base import Participant, Replica, StateBundle, TrainedWork, check_finite
from unisono.strategies.engines.gather import ModelGather, ShowModel
from unisono.strategies.engines.joining import join_dynamic
from unisono.strategies.engines.state_transfer import receive_bundle, send_bundle
from unisono.strategies.engines.work_reports import WorkReports
from unisono.strategies.every import MOST


@dataclass(frozen=True)
class Ask:
    """Begins an exchange; the model comes with it, and notes of uncommitted work in it."""

    notes: Notes


@dataclass(frozen=True)
class ModelAnswer:
    """The other model of an exchange."""

    notes: Notes


@dataclass(frozen=True)
class Busy:
    """There will be no answer: the one who was asked is in an exchange."""


@dataclass(frozen=True)
class Free:
    """One who was turned away may ask again."""


@dataclass(frozen=True)
class ExchangeState:
    """Of a checkpoint, beside the model."""

    rounds: int


@dataclass(frozen=True)
class NewcomerNotes:
    """What a newcomer gets with a model."""

    notes: Notes


# From the learner's thread to its agent.


@dataclass(frozen=True)
class Tick:
    """It is time for an exchange."""


@dataclass(frozen=True)
class Drain:
    """Ask until all that was trained is in others' models, too."""


@dataclass(frozen=True)
class TookOver:
    """The learner has a donor's model."""

    notes: Notes


@dataclass(frozen=True)
class HasEntered:
    """The learner takes part."""


@dataclass(frozen=True)
class End:
    """No more exchanges."""


@dataclass(frozen=True)
class Ended:
    """The answer to that."""


PeerMessage = Ask | ModelAnswer | Busy | Free | ShowModel
OwnMessage = Tick | Drain | TookOver | HasEntered | End
PORT: TypedPort[PeerMessage | Directive | OwnMessage | MembersChanged | Rejected] = TypedPort(
    STRATEGY, PeerMessage | Directive
)
ENDED: TypedPort[Ended] = TypedPort("ended")


LEAST_EXCHANGE = 4
"""Minibatches a learner between two exchanges that it begins, where they cost little."""


class ExchangePace:
    """When a learner begins an exchange: every so many examples, or as its cost allows.

    With c the seconds of its last exchange and r the examples that it trains in a second, an
    exchange every c r / OVERHEAD examples takes at most that share of the computing, and it is
    never more often than every ``LEAST_EXCHANGE`` minibatches.
    """

    def __init__(self, every: int | str, fabric: Fabric) -> None:
        self._fixed = every if isinstance(every, int) else None
        self._fabric = fabric
        self._lock = fabric.lock()
        self._since = fabric.now()
        self._examples = self._least = self._every = 0

    @property
    def every(self) -> int:
        """Examples between two exchanges that this learner begins."""
        with self._lock:
            return self._fixed or max(self._every, self._least)

    def trained(self, examples: int) -> None:
        """The learner has trained so many more."""
        with self._lock:
            self._examples += examples
            self._least = max(self._least, LEAST_EXCHANGE * examples)

    def exchanged(self, seconds: float) -> None:
        """An exchange took so long."""
        now = self._fabric.now()
        with self._lock:
            span, self._since = now - self._since, now
            wanted = seconds * self._examples / (OVERHEAD * span) if span > 0 else 0.0
            self._examples = 0
            self._every = round(min(wanted, 2 * max(self._every, self._least), MOST))


class PairwiseParticipant(Participant):
    """One learner's part in mixing by pairs.

    Learner i asks j with its model x_i (parameters plus pending deltas), j answers with x_j, and

        x_i <- x_i + (x_j - x_i) / 2        x_j <- x_j + (x_i - x_j) / 2

    each as a delta that its own thread adds in its next update. The two are exact negatives of each
    other, so the sum of all models stays what it is whenever each is applied, and no step that is
    made meanwhile is lost. In bfloat16 each side computes with the two models as they travelled,
    its own rounded as well, so this holds there, too.

    **One exchange at a time**, from a model that is given to the delta that comes of it: who
    answers is done at once; who asks, when it has the answer. Asked in between, it takes the
    question of the very one it asks as its answer (as does that one), tells a lower address that
    it is busy, and lets a higher one wait. So whoever waits, waits for a lower address: there is
    no circle, for any number of learners. Computing waits for nothing.

    **Committing.** A model travels with notes of all work in it that the coordinator may not know
    of: the learner's own, and what it took in from others and told of without being heard yet.
    Whoever takes a model in tells of the work in it: that is in state which survives its trainer
    then. Of a member that is gone, each tells, after the last word of it, that there is nothing
    more to come; then the coordinator gives out again what nobody has told of. So a minibatch is
    trained again only if no living model contains it. Two that die before either has exchanged with
    a third take with them what only they had.
    """

    def __init__(
        self, replica: Replica, every: int | str, precision: Precision = Precision.FLOAT32
    ) -> None:
        super().__init__(replica)
        self._pace = ExchangePace(every, self.fabric)
        self._precision = precision
        self._examples = 0
        self._gathering = ModelGather(self.fabric, STRATEGY)
        self._entered = False
        self._in = False
        """As ``_entered``, for the agent."""
        self._asked: Address | None = None
        self._model: Vector | None = None
        self._began = 0.0
        self._open = TrainedWork()
        """Trained, and in no other's model as far as is known."""
        self._in_question = TrainedWork()
        self._given: dict[Address, TrainedWork] = {}
        """Given in answers; the one who asked tells of it, unless it dies."""
        self._waiting: deque[Message[Ask]] = deque()
        self._turned_away: set[Address] = set()
        self._turned_away_by: Address | None = None
        self._reports = WorkReports(replica)
        self._unclosed: list[Address] = []
        self._draining = False
        self._ending = False
        self._kept: tuple[int, StateBundle] | None = None

    def partner(self, members: list[Address], round_: int) -> Address:
        """Whom to ask in one's own round of that number; oneself, if there is nobody else."""
        raise NotImplementedError

    # The learner's thread.

    def start(self) -> None:
        """Spawns the agent."""
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
        """Counts the examples since the last exchange."""
        self._examples += work.examples
        self._pace.trained(work.examples)

    def after_update(self) -> None:
        """Lets the agent know when it is time."""
        if self._examples >= self._pace.every:
            self._examples = 0
            self.fabric.post(PORT, Tick())

    def flush(self) -> None:
        """From now on the agent asks until all that was trained is in others' models, too."""
        self.fabric.post(PORT, Drain())

    def finish(self, leader: Address | None) -> None:
        """The mean of all models, which all end with."""
        if not self._entered:
            return
        self.fabric.post(PORT, End())
        self.fabric.receive(ENDED)
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
        """What the coordinator asked to keep."""
        kept, self._kept = self._kept, None
        return kept

    def _receive_state(self, donor: Address) -> None:
        bundle = receive_bundle(self.fabric, donor)
        notes = from_plain(NewcomerNotes, bundle.plain).notes
        self.replica.take_over(bundle)
        self.fabric.post(PORT, TookOver(notes))

    # The agent.

    def _run(self) -> None:
        while True:
            self._handle(self.fabric.receive(PORT))
            self._go_on()

    def _handle(self, message: Message[Any]) -> None:
        sender = message.sender
        match message.body:
            case Ask():
                self._on_ask(message)
            case ModelAnswer() if sender == self._asked:
                self._conclude(message)
            case Busy() if sender == self._asked:
                self._give_up()
                self._turned_away_by = sender
            case Free() if sender == self._turned_away_by:
                self._turned_away_by = None
            case MembersChanged(gone=gone):
                for address in gone:
                    self._on_gone(address)
            case ShowModel():
                self._show(sender)
            case directive_or_own:
                self._obey(directive_or_own)

    def _obey(self, order: Directive | OwnMessage) -> None:
        """What the coordinator or the learner's thread wants."""
        match order:
            case Tick():
                self._draining = False
                self._ask()
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

    def _go_on(self) -> None:
        """What is due while this learner is in no exchange."""
        while self._asked is None and self._in:
            while self._unclosed:
                self.client.tell(Closed(self._unclosed.pop()))
            if self._ending:
                self._refuse_all()
                self.fabric.post(ENDED, Ended())
                self._in = False
                return
            if self._waiting:
                self._answer(self._waiting.popleft())
                continue
            while self._turned_away:
                self._tell(self._turned_away.pop(), Free())
            if not (self._draining and self._open.ranges and self._turned_away_by is None):
                return
            self._ask()

    # Asking.

    def _ask(self) -> None:
        """Begins an exchange, unless one is under way."""
        if self._asked is not None or not self._in or self._ending:
            return
        self._turned_away_by = None
        self._began = self.fabric.now()
        model, notes = self._take_model()
        while True:
            members = self.fabric.members().addresses()
            partner = self.partner(members, self.rounds)
            self.rounds += 1
            if partner == self.fabric.address:
                self._mix(model.copy(), model)
                self._reports.report(notes)
                self._open, self._given = TrainedWork(), {}
                return
            if self._tell(partner, Ask(notes), self._round(model)):
                break
        self._asked, self._model = partner, model
        self._in_question, self._open = self._open, TrainedWork()

    def _conclude(self, message: Message[Ask] | Message[ModelAnswer]) -> None:
        """The other's model is here: as an answer, or as a question that crossed one's own."""
        assert self._model is not None and message.vector is not None
        partner = message.sender
        notes = {**message.body.notes, self.fabric.address: self._note(self._in_question)}
        nbytes = message.vector.nbytes
        self._mix(self._model, message.vector)
        message.release()
        self._reports.report(notes)
        self._asked, self._model = None, None
        self._in_question, self._given = TrainedWork(), {}
        self._pace.exchanged(self.fabric.now() - self._began)
        self.replica.event(
            "round",
            round=self.rounds - 1,
            time_s=self.fabric.now() - self._began,
            bytes=nbytes,
            members=2,
            partner=partner.number,
        )

    def _give_up(self) -> None:
        """No answer will come: the work stays to be shared."""
        work, self._in_question = self._in_question, TrainedWork()
        work.add(self._open)
        self._asked, self._model, self._open = None, None, work

    # Being asked.

    def _on_ask(self, message: Message[Ask]) -> None:
        sender = message.sender
        if sender == self._asked:
            self._conclude(message)
        elif not self._in or (self._asked is not None and sender < self.fabric.address):
            message.release()
            self._turned_away.add(sender)
            self._tell(sender, Busy())
        else:
            self._waiting.append(message)

    def _answer(self, message: Message[Ask]) -> None:
        sender = message.sender
        model, notes = self._take_model()
        if self._tell(sender, ModelAnswer(notes), self._round(model)):
            self._reports.report(message.body.notes)
            given = self._given.setdefault(sender, TrainedWork())
            given.add(self._open)
            self._open = TrainedWork()
            self._mix(model, message.vector)
        message.release()

    def _refuse_all(self) -> None:
        while self._waiting:
            message = self._waiting.popleft()
            message.release()
            self._tell(message.sender, Busy())

    # Both.

    def _take_model(self) -> tuple[Vector, Notes]:
        """The model, and all work in it that the coordinator may not know of, by owner."""
        snapshot = self.replica.snapshot()
        check_finite(self.replica, snapshot.vector, self.rounds)
        self._open.add(snapshot.work)
        mine = merge(self._note(self._open), self._in_question.ranges)
        notes = merge_notes({self.fabric.address: mine}, self._reports.unacknowledged)
        return snapshot.vector, notes

    def _round(self, model: Vector) -> Vector:
        """The model as it travels; what is kept here becomes the same."""
        rounded = model.rounded(self._precision)
        if rounded is not model:
            model.assign(rounded)
        return rounded

    def _note(self, work: TrainedWork) -> Ranges:
        """Positions, and those that were given in answers."""
        return merge(work.ranges, *(given.ranges for given in self._given.values()))

    def _mix(self, mine: Vector, theirs: Any) -> None:
        """Hands in half the difference; ``mine`` is used up."""
        mine.difference(theirs, mine)
        mine.scale(0.5)
        self.replica.add(mine)

    def _tell(self, to: Address, body: PeerMessage, vector: Vector | None = None) -> bool:
        try:
            self.fabric.send(to, PORT, body, vector)
        except Gone:
            return False
        return True

    def _on_gone(self, who: Address) -> None:
        self._unclosed.append(who)
        self._reports.member_gone()
        self._turned_away.discard(who)
        if who == self._asked:
            self._give_up()
        if who == self._turned_away_by:
            self._turned_away_by = None
        if who in self._given:
            self._open.add(self._given.pop(who))

    # For others, and for later.

    def _welcome(self, newcomer: Address) -> None:
        model, notes = self._take_model()
        try:
            plain = to_plain(NewcomerNotes(notes))
            send_bundle(self.fabric, newcomer, StateBundle(plain, {"parameters": model}))
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
