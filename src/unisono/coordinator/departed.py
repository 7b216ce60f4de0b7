"""Members that are gone, until it is known which of their work survives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unisono.fabric.address import Address


class Departed:
    """Members that are gone and whose leases cannot be handed out again yet.

    Their work may be in a sync round that is not resolved or, without sync rounds, in the models of
    *witnesses*, which have still to report it. A witness that is lost may have passed the model on
    to others that had already reported. So its reports are complete when everybody has reported on
    *it*, after its last message.
    """

    def __init__(self) -> None:
        self._witnesses: dict[Address, set[Address]] = {}
        self._after: dict[Address, set[Address]] = {}
        """Witnesses that were lost before they reported."""

    def __bool__(self) -> bool:
        return bool(self._witnesses)

    @property
    def held(self) -> list[Address]:
        return list(self._witnesses)

    def add(self, who: Address, witnesses: Iterable[Address]) -> None:
        """Adds a member that is gone; it is nobody's witness any more."""
        for gone, waited_for in self._witnesses.items():
            if who in waited_for:
                waited_for.discard(who)
                self._after[gone].add(who)
        self._witnesses[who], self._after[who] = set(witnesses), set()

    def close(self, gone: Address, witness: Address) -> None:
        """Notes that a witness has reported all work of ``gone`` that it has."""
        self._witnesses.get(gone, set()).discard(witness)

    def freed(self, may_contain: Callable[[Address], bool]) -> list[Address]:
        """Removes and returns members of whom all is known.

        Args:
            may_contain: whether an unresolved sync round may contain a member's work.
        """
        found: list[Address] = []
        # Members only wait for ones that went later: in reverse order one pass is enough.
        for who in reversed(list(self._witnesses)):
            waits = self._witnesses[who] or self._after[who] & set(self._witnesses)
            if not waits and not may_contain(who):
                del self._witnesses[who], self._after[who]
                found.append(who)
        return sorted(found)
