"""The engine of strategies that agree all together: an agent beside the learner.

One activity, one port. Its messages: the learner's own tick (static sharding), and the
coordinator's directives and answers (see ``unisono.coordinator.messages``). What is agreed on, and
what becomes of the result, is the strategy's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from unisono.coordinator.client import Refused
from unisono.coordinator.directives import CloseRound, Directive, SendResult, SendState
from unisono.coordinator.messages import (
    Fetch,
    Reply,
    Retire,
    Retry,
    RoundBroken,
    RoundCompleted,
    Skip,
    Sync,
)
from unisono.coordinator.output import STRATEGY
from unisono.coordinator.pace import RoundTiming
from unisono.fabric import (
    Address,
    Gone,
    Precision,
    TimedOut,
    TypedPort,
    Vector,
    from_plain,
    to_plain,
)
from unisono.pool.pool import Assignment
from unisono.pool.ranges import Notes, count, merge_notes
from unisono.strategies.base import Participant, Replica, StateBundle, TrainedWork
from unisono.strategies.engines.collective import Aborted, Collective
from unisono.strategies.engines.error_feedback import Bounds, Residuals
from unisono.strategies.engines.joining import join_dynamic
from unisono.strategies.engines.state_transfer import receive_state, send_state
from unisono.strategies.selection import AllModels, Candidate, Selection


@dataclass(frozen=True)
class RoundResult:
    """The result of a sync round, for a member for whom it broke."""

    round: int
    notes: Notes


@dataclass(frozen=True)
class SyncState:
    """What a newcomer gets beside its donor's vectors."""

    rounds: int
    excluded: tuple[Address, ...]


# Between the learner's thread and its agent.


@dataclass(frozen=True)
class Tick:
    """It is time for a round."""

    round: int


@dataclass(frozen=True)
class Report:
    """Tell the coordinator what it was not told yet."""


@dataclass(frozen=True)
class Done:
    """The answer to either."""


PORT: TypedPort[Directive | Reply | Tick | Report] = TypedPort(STRATEGY, Directive | Reply)
RESULTS: TypedPort[RoundResult] = TypedPort("supply", RoundResult)
AGREED: TypedPort[Done] = TypedPort("agreed")


@dataclass
class Contribution:
    """What a learner brings to a sync round."""

    vector: Vector
    work: TrainedWork


class SyncParticipant(Participant):
    """Sync rounds of all members, one after the other, done by the agent.

    A strategy overrides ``contribute`` (what goes in; on the agent's activity) and ``conclude``
    (what becomes of the mean; there, too). ``report_every``: sync rounds between two reports to the
    coordinator; reports are sent at once when anybody may wait for them.

    With ``fragments`` above 1 (dynamic sharding) a sync round moves its vectors in so many parts,
    spread over the time from one round to the next; ``conclude_fragment`` may use each as it comes.
    A learner that has run out of work ends the pauses of its agent.
    """

    report_every = 1
    staleness = 0
    """Updates between a gradient's parameters and its use."""
    selection: Selection = AllModels()
    """Whose contributions go into the mean."""

    def __init__(
        self, replica: Replica, precision: Precision = Precision.FLOAT32, fragments: int = 1
    ) -> None:
        super().__init__(replica)
        self._collective = Collective(self.fabric, precision)
        self._fragments = fragments
        self._members: list[Address] = []
        self._excluded: set[Address] = set()
        self._result: Vector | None = None
        self._spare: Vector | None = None
        self._last_notes: Notes | None = None
        self._unreported: tuple[int, Notes] | None = None
        self._unreported_count = 0
        self._kept: tuple[int, StateBundle] | None = None
        self._round_began: float | None = None
        """At first when the first minibatch began."""
        self._round_ended = self.fabric.now()
        self._intervals: deque[float] = deque(maxlen=2)
        """Between the beginnings of the last rounds."""
        self._paused_s = 0.0
        """In the last round, between its fragments."""
        self._out_of_work = False
        self._timing: RoundTiming | None = None
        self._share = 0
        self._deferred: deque[Directive | Tick | Report] = deque()

    # What a strategy says.

    def contribute(self) -> Contribution:
        """The vector to average and the work in it, which is also its weight."""
        raise NotImplementedError

    def common(self) -> Vector | None:
        """A vector that all members have alike, near to what they contribute; None: zero."""
        return None

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        """The sync round of so many members is complete; ``mean`` is valid until the next one."""
        raise NotImplementedError

    def conclude_fragment(self, mean: Vector, contribution: Contribution, part: Bounds) -> None:
        """A part of the mean is there, and not the last.

        The round may yet be done again without a member: ``conclude`` has the last word on all.
        """

    # The learner's thread.

    def state(self) -> StateBundle:
        """What rounds in few bits have not sent yet: in checkpoints alone, it is each one's own."""
        return StateBundle(vectors=self._collective.residuals.vectors())

    def load_state(self, bundle: StateBundle) -> None:
        self._collective.residuals = Residuals.load(bundle.vectors)

    def start(self) -> None:
        self.fabric.port(PORT)
        self.fabric.port(AGREED)
        self.fabric.spawn("agent", self._run)

    def enter(self, assignment: Assignment | None) -> bool:
        """Newcomers get a donor's state: the assignment's, or whom the coordinator names."""
        me = self.fabric.address
        if assignment is None:
            return join_dynamic(self.client, self._receive_state, lambda: self.rounds)
        self._members = list(assignment.members)
        if assignment.share != self._share and me == self._members[0]:
            self.replica.event("pace", round=assignment.first, minibatches=assignment.share)
        self._share = assignment.share
        if me == assignment.donor and assignment.newcomers:
            # Were this one to die unheard, the newcomers' model would hold what nobody reported.
            self.flush()
            self.client.call(Sync(), "session")
            for newcomer in assignment.newcomers:
                self._send_state(newcomer)
        elif me in assignment.newcomers:
            assert assignment.donor is not None
            try:
                self._receive_state(assignment.donor)
            except Gone:
                # The others have gone on from a point that nobody can give to this one any more.
                self.client.call(Retire(), "session")
                raise Refused(
                    f"{assignment.donor.name} died while it was handing its state over"
                ) from None
        return True

    def sync(self, sync_round: int) -> None:
        """Lets the agent do a sync round, and waits for it."""
        self.begin_round(sync_round)
        self.await_round()

    def begin_round(self, sync_round: int) -> None:
        """Lets the agent do a sync round; one at a time, and nothing else asked of it meanwhile."""
        self.fabric.post(PORT, Tick(sync_round))

    def await_round(self) -> None:
        """Waits for the sync round that was begun."""
        with self.waiting():
            self.fabric.receive(AGREED)

    def before_minibatch(self) -> None:
        self._out_of_work = False
        if self._round_began is None:
            self._round_began = self.fabric.now()

    def flush(self) -> None:
        """Lets the agent report what it has not, and waits until it has."""
        self._out_of_work = True
        self.fabric.post(PORT, Report())
        self.fabric.receive(AGREED)

    def take_checkpoint(self) -> tuple[int, StateBundle] | None:
        kept, self._kept = self._kept, None
        return kept

    # The agent.

    def _run(self) -> None:
        while True:
            message = self._deferred.popleft() if self._deferred else self.fabric.receive(PORT).body
            self._handle(message)

    def _handle(self, message: Directive | Reply | Tick | Report) -> None:
        match message:
            case Tick(number):
                self._report_if_due()
                self._sync(number, self._members)
                self.fabric.post(AGREED, Done())
            case CloseRound(number, members, checkpoint) if number >= self.rounds:
                self._sync(number, members)
                if checkpoint:
                    self._kept = (number, self.state())
            case SendState(newcomer):
                self._send_state(newcomer)
            case SendResult(number, members):
                self._supply(number, members)
            case Report():
                self._report()
                self.fabric.post(AGREED, Done())

    def _sync(self, number: int, members: Sequence[Address]) -> None:
        began = self.fabric.now()
        if self._round_began is not None:
            self._intervals.append(began - self._round_began)
        self._round_began = began
        compute_s = began - self._round_ended + self._paused_s
        self._paused_s = 0.0
        contribution = self.contribute()
        if self._spare is None:
            self._spare = contribution.vector.like()
        notes = self._attempt(number, members, contribution, self._spare)
        self._result, self._spare = self._spare, self._result
        assert self._result is not None
        counted = bool(notes.get(self.fabric.address)) or not any(notes.values())
        self._collective.settle(self._result, counted=counted)
        self.rounds = number + 1
        self.conclude(self._result, contribution, len(notes))
        self._round_ended = self.fabric.now()
        minibatches = count(contribution.work.ranges)
        round_s = self._round_ended - began - self._paused_s
        self._timing = RoundTiming(round_s, compute_s, minibatches)
        self._note(number, notes)
        left_out = bool(contribution.work.ranges) and not notes.get(self.fabric.address)
        if left_out:
            self._skip(contribution.work)
        self.replica.event(
            "round",
            round=number,
            time_s=self.fabric.now() - began - self._paused_s,
            bytes=self._collective.nbytes(contribution.vector),
            members=len(notes),
            staleness=self.staleness,
            weight=0 if left_out else contribution.work.examples,
            **({"left_out": True} if left_out else {}),
        )

    def _attempt(
        self, number: int, members: Sequence[Address], contribution: Contribution, result: Vector
    ) -> Notes:
        """Tries until it is complete; what went into it, by contributor."""
        attempt = 0
        work = contribution.work
        candidate = Candidate(work.examples, self.selection.objective())
        while True:
            living = [m for m in members if m not in self._excluded]
            try:
                parts = self._collective.mean(
                    living,
                    (number, attempt),
                    contribution.vector,
                    candidate,
                    work.note(),
                    result,
                    self.selection,
                    self.common(),
                    self._fragments if len(living) > 1 else 1,
                    partial(self._between, self.fabric.now(), contribution, result),
                )
                gone = parts.left_out
                return {m: () if m in gone else note for m, note in parts.notes.items()}
            except (Gone, Aborted):
                self._report()
                answer = self._stand(number)
            if isinstance(answer, Retry):
                attempt = answer.attempt
                self._excluded.update(answer.excluded)
                continue
            fetched = self._fetch(number, answer.source, result)
            if fetched is not None:
                return fetched

    def _between(
        self, began: float, contribution: Contribution, result: Vector, part: Bounds
    ) -> None:
        """A fragment is done: the next one is due in so many parts of the usual interval.

        Until then the learner computes; one that has run out of work waits for the round.
        """
        self.conclude_fragment(result.slice(*part), contribution, part)
        interval = min(self._intervals, default=0.0)
        paused = self.fabric.now()
        due = began + interval * part[1] / max(1, len(result))
        while not self._out_of_work and (left := due - self.fabric.now()) > 0:
            try:
                message = self.fabric.receive(PORT, timeout=left).body
            except TimedOut:
                break
            if isinstance(message, SendResult | SendState):
                self._handle(message)
            elif not isinstance(message, Reply):  # one to an earlier request, which was given up
                self._deferred.append(message)
        self._paused_s += self.fabric.now() - paused

    def _stand(self, number: int) -> Retry | Fetch:
        """Asks what to do; meanwhile others may need what this member has."""
        request = RoundBroken(number)
        sequence = self.client.tell(request, PORT.name)
        while True:
            match self.fabric.receive(PORT).body:
                case Reply() as reply:
                    answer = self.client.answer_to(request, sequence, reply)
                    if answer is not None:
                        return answer
                case (SendResult() | SendState()) as directive:
                    self._handle(directive)
                case other:
                    self._deferred.append(other)

    def _supply(self, number: int, to: Sequence[Address]) -> None:
        """Hands the last result on, to members for whom the sync round broke."""
        if self.rounds == number + 1 and self._result is not None and self._last_notes is not None:
            for member in to:
                try:
                    body = RoundResult(number, self._last_notes)
                    self.fabric.send(member, RESULTS, body, self._result)
                except Gone:
                    continue

    def _fetch(self, number: int, source: Address, result: Vector) -> Notes | None:
        """Takes the result from one who has it; None if that one died meanwhile."""
        while True:
            try:
                message = self.fabric.receive(RESULTS, source)
            except Gone:
                return None
            if message.body.round == number:
                result.assign(message.vector)
                message.release()
                return message.body.notes
            message.release()

    # Reports to the coordinator.

    def _skip(self, work: TrainedWork) -> None:
        """This learner was left out: nothing of what it trained is in any model."""
        self.replica.record(skipped=work.note())
        self.client.tell(Skip(work.note()))

    def _note(self, number: int, notes: Notes) -> None:
        self._last_notes = notes
        self.replica.record(sync_round=number, notes={str(m): note for m, note in notes.items()})
        before = {} if self._unreported is None else self._unreported[1]
        self._unreported = (number, merge_notes(before, notes))
        self._unreported_count += 1
        if self.report_every == 1:
            self._report()

    def _report_if_due(self) -> None:
        """Where gradients are shared: after the step, which may have been skipped by all."""
        if self._unreported_count >= self.report_every:
            self._report()

    def _report(self) -> None:
        if self._unreported is not None:
            number, notes = self._unreported
            self._unreported, self._unreported_count = None, 0
            timing, self._timing = self._timing, None
            self.client.tell(RoundCompleted(number, notes, timing))

    # Newcomers.

    def _send_state(self, newcomer: Address) -> None:
        learner, own = self.replica.export(optimizer=self.optimizer_travels), self.state()
        Residuals.load(own.vectors)  # stay here
        own.plain["sync"] = to_plain(SyncState(self.rounds, tuple(sorted(self._excluded))))
        try:
            send_state(self.fabric, newcomer, learner, own)
        except Gone:
            return

    def _receive_state(self, donor: Address) -> None:
        learner, bundle = receive_state(self.fabric, donor, 2)
        self.replica.take_over(learner)
        state = from_plain(SyncState, bundle.plain.pop("sync"))
        self.rounds = state.rounds
        self._excluded = set(state.excluded)
        # What the donor has trained since the last sync round is its own to bring, and only once.
        self.restore(bundle)
