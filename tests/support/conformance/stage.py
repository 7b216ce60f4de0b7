"""What a conformance case is made of: the players, and a stage that does what no fabric does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from unisono.fabric import Address, Fabric, Member, View, learner

A, B, C, D = (learner(number) for number in range(4))
"""The players of most cases."""


class Ability(Enum):
    """What not every set-up can do to its players."""

    PAUSE = "pause"
    CUT = "cut"
    RETURN = "return"


class Stage(Protocol):
    """The world around the fabric, as one player sees it."""

    @property
    def incarnation(self) -> int:
        """How often somebody has played at this player's address before."""
        ...

    @property
    def view(self) -> View:
        """The members at the beginning: every player except the coordinator."""
        ...

    def kill(self, address: Address) -> None:
        """Ends a player without warning; returns when it is dead. The fabrics are not told."""
        ...

    def start(self, address: Address) -> Member:
        """Brings another player on; it plays the same case, and knows ``view``."""
        ...

    def pause(self, address: Address) -> None:
        """Stops a player where it is; needs ``Ability.PAUSE``."""
        ...

    def resume(self, address: Address) -> None:
        """Lets a paused player go on."""
        ...

    def cut(self, a: Address, b: Address) -> None:
        """Nothing goes between two players any more; needs ``Ability.CUT``."""
        ...

    def heal(self, a: Address, b: Address) -> None:
        """The two reach each other again."""
        ...


Play = Callable[[Fabric, Stage], None]
P = TypeVar("P", bound=Play)


@dataclass(frozen=True)
class Case:
    """One thing that every fabric does. All players run ``play``, each on its own node.

    ``play`` is a function of a module, so that it can be handed to a process by name.
    """

    play: Play
    players: tuple[Address, ...]
    needs: frozenset[Ability] = frozenset()

    @property
    def name(self) -> str:
        """The function's name says what is promised."""
        return self.play.__name__


CASES: list[Case] = []
"""Every case that was declared, in the order of the files."""


def case(*players: Address, needs: Iterable[Ability] = ()) -> Callable[[P], P]:
    """Declares a function as a case for these players."""

    def declare(play: P) -> P:
        CASES.append(Case(play, players, frozenset(needs)))
        return play

    return declare


def without(view: View, *gone: Address) -> View:
    """The next view, in which some are missing."""
    return View(view.version + 1, tuple(m for m in view.members if m.address not in gone))


def tell(node: Fabric, to: Address, word: str) -> None:
    """A cue for another player."""
    node.send(to, "cue", {"word": word})


def hear(node: Fabric, from_: Address, word: str) -> None:
    """Waits for a cue."""
    heard = node.receive("cue", from_).body["word"]
    assert heard == word, f"{node.address} heard {heard!r} instead of {word!r}"
