"""Which sync rounds are complete, and what to do when a participant dies in one.

Sync round number ``c`` is *complete at a member* when the member has its result, and *resolved*
when it is complete at every living participant. What went into it is committed then, and not
before: a result that only the dead had seen is lost.

When a participant dies, a collective may be complete at some and broken at others. Each member for
whom it broke *stands* at it. As soon as every living participant stands at ``c`` or has completed
it, there are two cases:

* some have completed it: the others fetch the result from one of these, so that the dead member's
  last contribution is kept by all;
* none has: the living do it again (another ``attempt``), and the dead are excluded from it and
  from all later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from unisono.coordinator.directives import SendResult
from unisono.coordinator.messages import Command, Fetch, Retry
from unisono.coordinator.output import STRATEGY, Output
from unisono.fabric.address import Address
from unisono.pool.ranges import Notes


class SyncRounds:
    """The sync rounds of one run, by number."""

    def __init__(self) -> None:
        self.resolved = 0
        self._expected: list[tuple[int, int, list[Address]]] = []
        self._done: dict[Address, int] = {}
        self._incomplete: set[Address] | None = None
        """Living participants that have not completed the next round; None: not counted yet."""
        self._notes: list[tuple[int, Notes]] = []
        self._standing: dict[Address, tuple[int, Command]] = {}
        self._excluded: set[Address] = set()
        self._attempts: dict[int, int] = {}
        self._supplies: list[tuple[Address, SendResult]] = []

    @property
    def supplies(self) -> list[Output]:
        """Orders to send a result on, of rounds that are not resolved."""
        return [Output(to, STRATEGY, s) for to, s in self._supplies if s.round >= self.resolved]

    @property
    def open(self) -> bool:
        """Whether an expected round is not resolved."""
        return any(stop > self.resolved for _, stop, _ in self._expected)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to resolve."""
        return not self._expected and not self._notes

    def start(self, number: int) -> None:
        """Sets the number of the first round, which is not 0 in a resumed run."""
        self.resolved = number

    def expect(self, first: int, stop: int, members: list[Address]) -> None:
        """Sets the participants of rounds ``first`` to ``stop - 1``."""
        self._expected = [e for e in self._expected if e[1] > self.resolved]
        self._expected.append((first, stop, members))
        for member in members:
            self._done.setdefault(member, first)
        self._incomplete = None

    def enter(self, who: Address) -> None:
        """Adds a newcomer, which has the state of all resolved rounds."""
        self._done[who] = self.resolved
        self._incomplete = None

    def remove(self, who: Address) -> None:
        self._standing.pop(who, None)
        self._done.pop(who, None)
        if self._incomplete is not None:
            self._incomplete.discard(who)

    def may_contain(self, who: Address) -> bool:
        """Whether an unresolved round may contain this member's work."""
        if who in self._excluded:
            return False
        return any(stop > self.resolved and who in members for _, stop, members in self._expected)

    def complete(self, who: Address, number: int, notes: Notes | None) -> None:
        """Notes that a member has all results up to ``number``, and what went into them."""
        self._has_done(who, number + 1)
        if notes:
            self._notes.append((number, notes))

    def has_completed(self, who: Address, number: int) -> bool:
        """Whether this member has the result of a sync round."""
        return self._done.get(who, 0) > number

    def stand(self, who: Address, number: int, request: Command) -> None:
        """Notes that round ``number`` broke for a member that has completed all before."""
        self._has_done(who, number)
        self._standing[who] = (number, request)

    def resolve(self, living: Sequence[Address]) -> Iterator[Notes]:
        """Resolves rounds that all living participants have completed; yields what to commit."""
        while self._expected:
            participants = self.participants(self.resolved)
            if participants is None:
                break
            if self._incomplete is None:
                done, next_ = self._done, self.resolved
                alive = [a for a in participants if a in living]
                self._incomplete = {a for a in alive if done.get(a, 0) <= next_}
            if self._incomplete:
                break
            if not any(self._done.get(a, 0) > self.resolved for a in living):
                # Only the dead had the result: what went into it is not committed.
                self._notes = [n for n in self._notes if n[0] != self.resolved]
            self.resolved += 1
            self._incomplete = None
            self._supplies = [s for s in self._supplies if s[1].round >= self.resolved]
        ready = [notes for number, notes in self._notes if number < self.resolved]
        self._notes = [(number, notes) for number, notes in self._notes if number >= self.resolved]
        yield from ready

    def regroup(
        self, living: Sequence[Address], tell: Callable[[Output], None]
    ) -> Iterator[tuple[Command, Fetch | Retry]]:
        """Answers members that stand, once it is known where all participants are."""
        while self._standing:
            number = min(n for n, _ in self._standing.values())
            alive = [a for a in self.participants(number) or [] if a in living]
            here = [a for a in alive if a in self._standing and self._standing[a][0] == number]
            ahead = [a for a in alive if self._done.get(a, 0) > number]
            if len(here) + len(ahead) < len(alive):
                return
            if ahead:
                answer: Fetch | Retry = Fetch(number, ahead[0])
                order = SendResult(number, tuple(here))
                self._supplies.append((ahead[0], order))
                tell(Output(ahead[0], STRATEGY, order))
            else:
                answer = self._redo(number, living)
            for who in here:
                yield self._standing.pop(who)[1], answer

    def participants(self, number: int) -> list[Address] | None:
        """The participants of a round, the dead included; None if it is not expected."""
        for first, stop, members in self._expected:
            if first <= number < stop:
                return members
        return None

    def _has_done(self, who: Address, rounds: int) -> None:
        done = self._done[who] = max(self._done.get(who, 0), rounds)
        if self._incomplete is not None and done > self.resolved:
            self._incomplete.discard(who)

    def _redo(self, number: int, living: Sequence[Address]) -> Retry:
        participants = self.participants(number) or []
        self._excluded.update(a for a in participants if a not in living)
        self._attempts[number] = self._attempts.get(number, 0) + 1
        return Retry(number, self._attempts[number], tuple(sorted(self._excluded)))
