"""Those who are gone, until it is known what of their work lives on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unisono.fabric.address import Address


class Departed:
    """Whose leases may not be given out again yet.

    Work of one who is gone may be in a sync round that is not resolved, or, where each commits by
    its own word, in the models of others, who have still to tell of it: its witnesses. A witness
    that goes without a word may have sent the model on before, to others who had told all they
    knew by then. So what it owed is known when everybody has told of *it*, after its last message.
    """

    def __init__(self) -> None:
        self._witnesses: dict[Address, set[Address]] = {}
        self._after: dict[Address, set[Address]] = {}
        """Witnesses that went without a word."""

    def __bool__(self) -> bool:
        return bool(self._witnesses)

    @property
    def held(self) -> list[Address]:
        return list(self._witnesses)

    def add(self, who: Address, witnesses: Iterable[Address]) -> None:
        """A member is gone; it is nobody's witness any more."""
        for gone, waited_for in self._witnesses.items():
            if who in waited_for:
                waited_for.discard(who)
                self._after[gone].add(who)
        self._witnesses[who], self._after[who] = set(witnesses), set()

    def close(self, gone: Address, witness: Address) -> None:
        """The witness has told all that it has of one that is gone."""
        self._witnesses.get(gone, set()).discard(witness)

    def freed(self, may_contain: Callable[[Address], bool]) -> list[Address]:
        """Those of whom all is known, once; ``may_contain``: whether a sync round may have more."""
        found: list[Address] = []
        # Those that others wait for went later: from the last to the first, one pass is enough.
        for who in reversed(list(self._witnesses)):
            waits = self._witnesses[who] or self._after[who] & set(self._witnesses)
            if not waits and not may_contain(who):
                del self._witnesses[who], self._after[who]
                found.append(who)
        return sorted(found)
