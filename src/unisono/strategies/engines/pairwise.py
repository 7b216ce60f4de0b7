"""The engine of strategies whose learners average in pairs, beside computing."""

from __future__ import annotations

from collections import deque
from typing import Any

from unisono.fabric import Address, Addresses, Message, Precision, Vector
from unisono.pool.ranges import Ranges, merge
from unisono.strategies.base import Replica, TrainedWork
from unisono.strategies.engines.gossip import GossipParticipant
from unisono.strategies.engines.gossip_messages import Ask, Busy, ModelAnswer

LEAST_EXCHANGE = 4
"""Minibatches between two exchanges that a learner begins, where they cost little."""


class PairwiseParticipant(GossipParticipant):
    """Exchanges of two learners.

    Learner i asks j with its model x_i (parameters plus pending deltas), j answers with x_j, and

        x_i <- x_i + (x_j - x_i) / 2        x_j <- x_j + (x_i - x_j) / 2

    each as a delta that its own thread adds in its next update. The two are exact negatives of each
    other, so the sum of all models is preserved whenever each is applied, and no step that is made
    meanwhile is lost. In fewer bits both sides compute with the two models as they were sent, so
    this holds there, too (``pair_codec``).

    **One exchange at a time.** A learner that answers is done at once; one that asks, when it has
    the answer. If it is asked meanwhile by the learner that it has asked, both take the other's
    question as the answer; it tells a lower address that it is busy, and lets a higher one wait.
    So learners wait only for lower addresses, and cannot deadlock. Computing never waits.

    **Refused**, a learner asks the next partner at once; when all are busy, the first one that says
    that it is free. An exchange stays due until it has taken place.
    """

    def __init__(
        self, replica: Replica, every: int | str, precision: Precision = Precision.FLOAT32
    ) -> None:
        super().__init__(replica, every, LEAST_EXCHANGE, precision)
        self._is_due = False
        self._asked: Address | None = None
        self._model: Vector | None = None
        self._began = 0.0
        self._in_question = TrainedWork()
        self._given: dict[Address, TrainedWork] = {}
        """Own work given in answers; the receiver reports it, unless it dies."""
        self._waiting: deque[Message[Ask]] = deque()

    def partner(self, members: Addresses, round_: int) -> Address:
        """Whom to ask in this learner's round of that number; itself, if there is nobody else."""
        raise NotImplementedError

    def _on_tick(self) -> None:
        if self._in:
            self._is_due = True
            self.due += 1

    def _on_peer(self, message: Message[Any]) -> None:
        match message.body:
            case Ask():
                self._on_ask(message)
            case ModelAnswer() if message.sender == self._asked:
                self._conclude(message)
            case Busy() if message.sender == self._asked:
                self._give_up()
                self._refused_by.add(message.sender)

    def _go_on(self) -> None:
        """Does what is due while this learner is in no exchange."""
        while self._asked is None and self._in:
            self._tell_closed()
            if self._ending:
                self._refuse_all()
                self._end()
                return
            if self._waiting:
                self._answer(self._waiting.popleft())
                continue
            self._free_all()
            wanted = self._is_due or (self._draining and self._open.ranges)
            if not wanted or not self._ask():
                return

    # Asking.

    def _ask(self) -> bool:
        """Begins an exchange, or completes one with itself; False: all partners are busy."""
        while (partner := self._choose()) is not None:
            self._began = self.fabric.now()
            model, notes = self._take_model()
            if partner == self.fabric.address:
                self._mix(model.copy(), model)
                self._reports.report(notes)
                self._open, self._given = TrainedWork(), {}
                self._complete()
                return True
            if self._tell(partner, Ask(notes), self._codec.encode(partner, model)):
                self._asked, self._model = partner, model
                self._in_question, self._open = self._open, TrainedWork()
                return True
        return False

    def _choose(self) -> Address | None:
        """The next partner that is not known to be busy; None: there is none."""
        members = self.fabric.members().addresses()
        for _ in members if self.fabric.address in members else []:
            partner = self.partner(members, self.rounds)
            self.rounds += 1
            if partner not in self._refused_by:
                return partner
        return None

    def _conclude(self, message: Message[Ask] | Message[ModelAnswer]) -> None:
        """Takes the partner's model, from its answer or from its own question."""
        assert self._model is not None and message.vector is not None
        partner = message.sender
        notes = {**message.body.notes, self.fabric.address: self._note(self._in_question)}
        nbytes = message.vector.nbytes
        self._mix(self._model, self._codec.decode(partner, message.vector, self._model))
        message.release()
        self._reports.report(notes)
        self._asked, self._model = None, None
        self._in_question, self._given = TrainedWork(), {}
        self._complete()
        self._pace.exchanged(self.fabric.now() - self._began)
        self.replica.event(
            "round",
            round=self.rounds - 1,
            time_s=self.fabric.now() - self._began,
            bytes=nbytes,
            members=2,
            partner=partner.number,
        )

    def _complete(self) -> None:
        """Counts an exchange, unless it was one of a drain, which are not due."""
        self.completed += self._is_due
        self._is_due = False

    def _give_up(self) -> None:
        """Ends an exchange that will not be answered; its work remains to be shared."""
        work, self._in_question = self._in_question, TrainedWork()
        work.add(self._open)
        self._asked, self._model, self._open = None, None, work

    # Being asked.

    def _on_ask(self, message: Message[Ask]) -> None:
        sender = message.sender
        if sender == self._asked:
            self._conclude(message)
        elif not self._in or (self._asked is not None and sender < self.fabric.address):
            self._turn_away(message)
        else:
            self._waiting.append(message)

    def _answer(self, message: Message[Ask]) -> None:
        sender = message.sender
        model, notes = self._take_model()
        if self._tell(sender, ModelAnswer(notes), self._codec.encode(sender, model)):
            self._reports.report(message.body.notes)
            given = self._given.setdefault(sender, TrainedWork())
            given.add(self._open)
            self._open = TrainedWork()
            assert message.vector is not None
            self._mix(model, self._codec.decode(sender, message.vector, model))
        message.release()

    def _refuse_all(self) -> None:
        while self._waiting:
            message = self._waiting.popleft()
            message.release()
            self._tell(message.sender, Busy())

    # Both.

    def _sent_work(self) -> Ranges:
        return self._note(self._in_question)

    def _note(self, work: TrainedWork) -> Ranges:
        """The positions of ``work``, and those given in answers."""
        return merge(work.ranges, *(given.ranges for given in self._given.values()))

    def _mix(self, mine: Vector, theirs: Any) -> None:
        """Adds half the difference to the learner's parameters; overwrites ``mine``."""
        mine.difference(theirs, mine)
        mine.scale(0.5)
        self.replica.add(mine)

    def _on_gone(self, who: Address) -> None:
        if who == self._asked:
            self._give_up()
        if who in self._given:
            self._open.add(self._given.pop(who))
