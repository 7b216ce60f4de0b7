"""The engine of strategies with sync rounds of all members, run by an agent beside the learner.

The agent is one activity with one port, to which the learner's thread sends ticks (static sharding)
and the coordinator directives and answers. Strategies say what is averaged and how the result is
used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
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
    """The result of a sync round, for a member for which it broke."""

    round: int
    notes: Notes


@dataclass(frozen=True)
class SyncState:
    """Sent to newcomers with the donor's vectors."""

    rounds: int
    excluded: tuple[Address, ...]


# Between the learner's thread and its agent.


@dataclass(frozen=True)
class Tick:
    """It is time for a round."""

    round: int


@dataclass(frozen=True)
class Report:
    """Report to the coordinator what was not reported yet."""


@dataclass(frozen=True)
class Done:
    """The answer to either."""


PORT: TypedPort[Directive | Reply | Tick | Report] = TypedPort(STRATEGY, Directive | Reply)
RESULTS: TypedPort[RoundResult] = TypedPort("supply", RoundResult)
AGREED: TypedPort[Done] = TypedPort("agreed")


@dataclass
class Contribution:
    """What a learner contributes to a sync round."""

    vector: Vector
    work: TrainedWork


class SyncParticipant(Participant):
    """Sync rounds of all members, one after the other, run by the agent.

    A strategy overrides ``contribute`` (what is averaged) and ``conclude`` (how the mean is used),
    which both run on the agent. ``report_every`` is how many sync rounds one report to the
    coordinator covers; it is sent at once when somebody may wait for it.

    With ``fragments`` above 1 (dynamic sharding) a sync round sends its vectors in so many parts,
    spread over the time until the next round; ``conclude_fragment`` may use each as it arrives. The
    agent does not pause between fragments while its learner is out of work.
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
        self._round_began: float | None = None
        """When the last round began; before the first round, when the first minibatch did."""
        self._round_ended = self.fabric.now()
        self._intervals: deque[float] = deque(maxlen=2)
        """Seconds between the beginnings of the last rounds."""
        self._paused_s = 0.0
        """Seconds between the fragments of the last round."""
        self._out_of_work = False
        self._timing: RoundTiming | None = None
        self._share = 0
        self._deferred: deque[Directive | Tick | Report] = deque()

    # What a strategy overrides.

    def contribute(self) -> Contribution:
        """The vector to average and the work in it, whose examples are its weight."""
        raise NotImplementedError

    def common(self) -> Vector | None:
        """A vector that is the same at all members, near to what they contribute; None: zero."""
        return None

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        """Called when a sync round is complete; ``mean`` is valid until the next one."""
        raise NotImplementedError

    def conclude_fragment(self, mean: Vector, contribution: Contribution, part: Bounds) -> None:
        """Called for each fragment of the mean but the last.

        The round may still break and be repeated without a member; ``conclude`` gets the final
        mean.
        """

    # The learner's thread.

    def state(self) -> StateBundle:
        """The residuals of error feedback. They are in checkpoints, but not sent to newcomers."""
        return StateBundle(vectors=self._collective.residuals.vectors())

    def load_state(self, bundle: StateBundle) -> None:
        self._collective.residuals = Residuals.load(bundle.vectors)

    def start(self) -> None:
        self.fabric.port(PORT)
        self.fabric.port(AGREED)
        self.fabric.spawn("agent", self._run)

    def enter(self, assignment: Assignment | None) -> bool:
        """Newcomers receive a donor's state; the donor sends it."""
        me = self.fabric.address
        if assignment is None:
            return join_dynamic(self.client, self._receive_state, lambda: self.rounds)
        self._members = list(assignment.members)
        if assignment.share != self._share and me == self._members[0]:
            self.replica.event("pace", round=assignment.first, minibatches=assignment.share)
        self._share = assignment.share
        if me == assignment.donor and assignment.newcomers:
            # Otherwise, if this learner died, the newcomers' model would contain unreported work.
            self.flush()
            self.client.call(Sync(), "session")
            for newcomer in assignment.newcomers:
                self._send_state(newcomer)
        elif me in assignment.newcomers:
            assert assignment.donor is not None
            try:
                self._receive_state(assignment.donor)
            except Gone:
                # The others have gone on, and nobody has the state that the assignment begins with.
                self.client.call(Retire(), "session")
                raise Refused(
                    f"{assignment.donor.name} died while it was handing its state over"
                ) from None
        return True

    def sync(self, sync_round: int) -> None:
        """Does a sync round, and waits for it."""
        self.begin_round(sync_round)
        self.await_round()

    def begin_round(self, sync_round: int) -> None:
        """Begins a sync round on the agent; ``await_round`` must follow before anything else."""
        self.fabric.post(PORT, Tick(sync_round))

    def await_round(self) -> None:
        """Waits for the sync round that ``begin_round`` began."""
        with self.waiting():
            self.fabric.receive(AGREED)

    def before_minibatch(self) -> None:
        self._out_of_work = False
        if self._round_began is None:
            self._round_began = self.fabric.now()

    def flush(self) -> None:
        """Reports to the coordinator what was not reported yet."""
        self._out_of_work = True
        self.fabric.post(PORT, Report())
        self.fabric.receive(AGREED)

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
        """Repeats a round until it is complete; returns the work in it by contributor."""
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
        """Pauses after a fragment, so that fragments are spread over the usual interval of rounds.

        Does not pause while the learner is out of work, and waits for the round.
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
            elif not isinstance(message, Reply):  # a late answer to a request that was given up
                self._deferred.append(message)
        self._paused_s += self.fabric.now() - paused

    def _stand(self, number: int) -> Retry | Fetch:
        """Asks the coordinator what to do; meanwhile sends others what they need."""
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
        """Sends the last result to members for which the sync round broke."""
        if self.rounds == number + 1 and self._result is not None and self._last_notes is not None:
            result = RoundResult(number, self._last_notes)
            for member in to:
                with suppress(Gone):
                    self.fabric.send(member, RESULTS, result, self._result)

    def _fetch(self, number: int, source: Address, result: Vector) -> Notes | None:
        """Receives the result from a member that has it; None if that member died."""
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
        """Reports work as skipped: this learner was left out of the mean."""
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
        """Before the next round, so that a step that all skip can still be reported as skipped."""
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
        Residuals.load(own.vectors)  # takes them out: they stay here
        own.plain["sync"] = to_plain(SyncState(self.rounds, tuple(sorted(self._excluded))))
        with suppress(Gone):
            send_state(self.fabric, newcomer, learner, own)

    def _receive_state(self, donor: Address) -> None:
        learner, bundle = receive_state(self.fabric, donor, 2)
        self.replica.take_over(learner)
        state = from_plain(SyncState, bundle.plain.pop("sync"))
        self.rounds = state.rounds
        self._excluded = set(state.excluded)
        # The donor itself contributes what it has trained since the last sync round.
        self.restore(bundle)
