"""The work in a learner's model that the coordinator has been told of, or has still to be."""

from __future__ import annotations

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
        self._sent: list[tuple[int, Notes]] = []
        self._acknowledged = RangeSet()
        """Positions of learners that are still members."""

    @property
    def unacknowledged(self) -> Notes:
        """What the coordinator may not know yet."""
        self._look()
        return merge_notes(*(notes for _, notes in self._sent))

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
            self._replica.record(notes={str(owner): note for owner, note in fresh.items()})

    def member_gone(self) -> None:
        """Positions of one who is gone may be another's from now on."""
        self._acknowledged = RangeSet()

    def _look(self) -> None:
        """Finds out what was acknowledged."""
        client, members = self._replica.client, self._replica.fabric.members().addresses()
        heard = [notes for number, notes in self._sent if not client.is_pending(number)]
        self._sent = [(n, notes) for n, notes in self._sent if client.is_pending(n)]
        known = [ranges for notes in heard for owner, ranges in notes.items() if owner in members]
        for start, stop in merge(*known):
            self._acknowledged.add(start, stop)
