"""The work in a learner's model that the coordinator has been told of, or has still to be."""

from __future__ import annotations

from collections import deque

from unisono.coordinator.messages import Commit
from unisono.pool.ranges import Notes, RangeSet, merge, merge_notes, subtract
from unisono.strategies.base import Replica


class WorkReports:
    """Commits, each reported once by this learner.

    What the coordinator has not acknowledged travels on with the model, so that it is not lost with
    this learner. What it has acknowledged need not be reported, nor travel, again, even if another
    learner, whose own report is still on its way, sends it here once more: otherwise reports would
    go round for ever.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._sent: deque[tuple[int, Notes]] = deque()
        self._unacknowledged: Notes | None = {}
        """Of all that is in ``_sent``; None: it has changed."""
        self._acknowledged = RangeSet()
        """Positions of learners that are still members."""

    @property
    def unacknowledged(self) -> Notes:
        """What the coordinator may not know yet."""
        self._look()
        if self._unacknowledged is None:
            self._unacknowledged = merge_notes(*(notes for _, notes in self._sent))
        return self._unacknowledged

    def report(self, notes: Notes) -> None:
        """Reports what is new of some work."""
        sent = self.unacknowledged
        fresh = {
            owner: subtract(ranges, sent.get(owner, ()), self._acknowledged)
            for owner, ranges in notes.items()
        }
        fresh = {owner: ranges for owner, ranges in fresh.items() if ranges}
        if fresh:
            self._sent.append((self._replica.client.tell(Commit(fresh)), fresh))
            self._unacknowledged = None
            self._replica.record(notes={str(owner): note for owner, note in fresh.items()})

    def member_gone(self) -> None:
        """Positions of one who is gone may be another's from now on."""
        self._acknowledged = RangeSet()

    def _look(self) -> None:
        """Finds out what was acknowledged; that happens in the order in which it was sent."""
        client, heard = self._replica.client, []
        while self._sent and not client.is_pending(self._sent[0][0]):
            heard.append(self._sent.popleft()[1])
        if not heard:
            return
        self._unacknowledged = None
        members = self._replica.fabric.members().addresses()
        known = [ranges for notes in heard for owner, ranges in notes.items() if owner in members]
        for start, stop in merge(*known):
            self._acknowledged.add(start, stop)
