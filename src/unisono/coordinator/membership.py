"""Tells learners who the members are: changes, or the whole view to those that missed one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from unisono.coordinator.directives import ViewChanged, ViewPart
from unisono.coordinator.messages import CONTROL
from unisono.coordinator.output import Output
from unisono.fabric.address import Address
from unisono.fabric.api import BODY_LIMIT, Member, View

PART_BYTES = BODY_LIMIT // 2
"""Bytes of members in one message, at most."""
AT_ONCE = 50
"""Up to so many members each change is sent at once."""
PAUSE_S = 1e-4
"""Seconds to wait after each broadcast for each member beyond ``AT_ONCE``: changes are batched
then, and broadcasting them takes a bounded part of the coordinator's time."""


class Membership:
    """Sends learners changes of the view, once they are in the journal.

    A learner that has just joined, or asks for it, gets the whole view.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._told = View()
        self._not_before = now()

    def wait_s(self, view: View) -> float | None:
        """Seconds until a view may be sent; None: it has been."""
        if view.version == self._told.version:
            return None
        return max(0.0, self._not_before - self._now())

    def restart(self, view: View) -> list[Output]:
        """After a restart, when it is unknown which view learners have: makes them ask for it."""
        self._told = view
        return _to_all(view.addresses(), ViewChanged(view.version, view.version))

    def tell(self, view: View) -> list[Output]:
        """The messages that are due."""
        if self.wait_s(view) != 0.0:
            return []
        gone, joined = view.changes_since(self._told)
        change = ViewChanged(self._told.version, view.version, joined, gone)
        new = {member.address for member in joined}
        old = [address for address in view.addresses() if address not in new]
        self._told = view
        self._not_before = self._now() + PAUSE_S * max(0, len(view.members) - AT_ONCE)
        if _nbytes(joined) + sum(len(str(address)) + 3 for address in gone) <= PART_BYTES:
            return [*_to_all(old, change), *self._whole(new)]
        return self._whole(view.addresses())

    def whole(self, to: Address) -> list[Output]:
        """The view that was sent last, for a learner that has missed a change."""
        return self._whole([to]) if to in self._told.addresses() else []

    def _whole(self, to: Iterable[Address]) -> list[Output]:
        parts = list(_parts(self._told.members))
        bodies = [
            ViewPart(self._told.version, number, len(parts), members)
            for number, members in enumerate(parts)
        ]
        return [Output(who, CONTROL.name, body) for who in sorted(to) for body in bodies]


def _to_all(learners: Iterable[Address], change: ViewChanged) -> list[Output]:
    return [Output(who, CONTROL.name, change) for who in learners]


def _parts(members: tuple[Member, ...]) -> Iterator[tuple[Member, ...]]:
    first = nbytes = 0
    for place, member in enumerate(members):
        nbytes += _nbytes([member])
        if nbytes > PART_BYTES and place > first:
            yield members[first:place]
            first, nbytes = place, _nbytes([member])
    yield members[first:]


def _nbytes(members: Iterable[Member]) -> int:
    return sum(len(str(m.address)) + len(json.dumps(m.endpoint)) + 6 for m in members)
