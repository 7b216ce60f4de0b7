"""Static sharding: the pool is assigned in rounds, the same number of minibatches to everybody."""

from __future__ import annotations

from collections.abc import Set

from unisono.coordinator.messages import Answer, Assigned, Command, RequestAssignment, Wait
from unisono.coordinator.run_state import RunState
from unisono.fabric.address import Address
from unisono.pool.pool import Assignment

_BLOCK = 32
"""Minibatches per learner in an assignment of short rounds, to save requests."""


class StaticSharding:
    """Makes and hands out assignments."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._assignments: list[Assignment] = []
        self._living: set[Address] = set()
        """Members of the last assignment."""
        self._requests: dict[Address, tuple[RequestAssignment, Command]] = {}

    def request(self, operation: RequestAssignment, command: Command) -> None:
        """Handles a learner's request for its part of an assignment."""
        self._requests[command.who] = operation, command

    def remove(self, who: Address) -> None:
        self._requests.pop(who, None)
        self._living.discard(who)

    @property
    def has_state_holders(self) -> bool:
        return bool(self._living)

    @property
    def state_holders(self) -> Set[Address]:
        """The living members of the last assignment.

        Its newcomers count once they have completed a round, or if nobody else is left.
        """
        if not self._assignments:
            return set()
        assignment = self._assignments[-1]
        completed = self._run.sync_rounds.has_completed
        unsure = {a for a in assignment.newcomers if not completed(a, assignment.first)}
        return self._living - unsure or self._living

    def advance(self) -> None:
        """Answers requests; the first one for a new assignment makes it."""
        run = self._run
        if not self._assignments and any(a not in run.opened for a in run.learners):
            return  # a learner that has joined has still to say which state it comes with
        for who, (request, command) in sorted(self._requests.items(), key=lambda item: item[0]):
            number = request.number
            if number is None:
                number = next(
                    (d.number for d in self._assignments if d.has(who)), len(self._assignments)
                )
            if number == len(self._assignments) and run.pool.free:
                self._assign()
            answer: Answer
            if number < len(self._assignments) and self._assignments[number].has(who):
                answer = Assigned(self._assignments[number])
            elif run.pool.over:
                answer = run.complete(self._assignments[-1].members if self._assignments else ())
            elif not request.patient:
                answer = Wait()
            else:
                continue
            del self._requests[who]
            run.delivery.answer(command, answer)

    def _assign(self) -> None:
        run, last = self._run, self._assignments[-1] if self._assignments else None
        assert run.job is not None
        before = set(last.members) if last else run.restored
        newcomers = [a for a in run.learners if a not in before]
        old = [a for a in run.learners if a in before]
        donor = old[0] if old else run.first_donor(newcomers)
        if donor is None:
            return
        if last is None and not old:
            newcomers = [a for a in newcomers if not run.begins_like(a, donor)]
        first = last.first + last.rounds if last else run.sync_rounds.resolved
        share = run.share(first)
        assignment = run.pool.assign(
            len(self._assignments),
            first,
            run.learners,
            share,
            1 if run.stopping else self._rounds(first, share),
            [a for a in newcomers if a != donor],
            donor,
            keep=run.checkpoints.asked,
        )
        run.checkpoints.asked = False
        if run.stopping:
            run.stopping = False
            run.pool.stop()
        self._assignments.append(assignment)
        self._living = set(assignment.members)
        if run.job.commits_by_round:
            stop = assignment.first + assignment.rounds
            run.sync_rounds.expect(assignment.first, stop, list(assignment.members))

    def _rounds(self, first: int, share: int) -> int:
        """Rounds in an assignment: not beyond a round at which a scheduled pace changes."""
        job = self._run.job
        assert job is not None
        block = _BLOCK // share if job.adaptive_pace else 0
        later = [round_ for round_, _ in self._run.pace.schedule if round_ > first]
        return min([max(job.rounds, block), *(round_ - first for round_ in later)])
