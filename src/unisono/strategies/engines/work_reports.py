"""Reports of the work in a learner's model to the coordinator."""

from __future__ import annotations

from collections import deque

from unisono.coordinator.messages import Commit
from unisono.pool.ranges import Notes, RangeSet, merge, merge_notes, subtract
from unisono.strategies.base import Replica


class WorkReports:
    """Reports commits, each once per learner.

    Work that the coordinator has not acknowledged is sent on with the model, so that it is not
    lost with this learner. Acknowledged work is neither reported nor sent again, even if another
    learner, whose own report is still on its way, sends it back, or reports would never end.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._sent: deque[tuple[int, Notes]] = deque()
        self._unacknowledged: Notes | None = {}
        """The union of ``_sent``; None: to be computed."""
        self._acknowledged = RangeSet()
        """Positions of learners that are still members."""

    @property
    def unacknowledged(self) -> Notes:
        """Work that was reported and not acknowledged yet."""
        self._look()
        if self._unacknowledged is None:
            self._unacknowledged = merge_notes(*(notes for _, notes in self._sent))
        return self._unacknowledged

    def report(self, notes: Notes) -> None:
        """Reports the part of ``notes`` that was not reported before."""
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
        """Forgets what was acknowledged: positions of a lost member may be trained by another."""
        self._acknowledged = RangeSet()

    def _look(self) -> None:
        """Moves reports that were acknowledged, which happens in the order of sending."""
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
