"""Those who are gone, until it is known what of their work lives on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unisono.fabric.address import Address


class Departed:
    """Whose leases may not be given out again yet.

    Work of one who is gone may be in an agreement that is not resolved, or, where each settles by
    its own word, in the models of others, who have still to tell of it: its witnesses.
    """

    def __init__(self) -> None:
        self._witnesses: dict[Address, set[Address]] = {}

    @property
    def held(self) -> list[Address]:
        """All of them."""
        return list(self._witnesses)

    def add(self, who: Address, witnesses: Iterable[Address]) -> None:
        """A member is gone; it is nobody's witness any more."""
        self._witnesses[who] = set(witnesses)
        for waited_for in self._witnesses.values():
            waited_for.discard(who)

    def close(self, gone: Address, witness: Address) -> None:
        """The witness has told all that it has of one that is gone."""
        self._witnesses.get(gone, set()).discard(witness)

    def freed(self, may_contain: Callable[[Address], bool]) -> list[Address]:
        """Those of whom all is known, once; ``may_contain``: whether an agreement may have more."""
        free = [w for w in sorted(self._witnesses) if not self._witnesses[w] and not may_contain(w)]
        for who in free:
            del self._witnesses[who]
        return free
