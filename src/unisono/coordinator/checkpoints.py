"""Which checkpoints are being written, and what is committed in each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from unisono.fabric.address import Address
from unisono.pool.ranges import Range, RangeSet


class Checkpoints:
    """A checkpoint holds the models and the pool of one instant.

    What is committed at that instant is known in one of three ways:

    * static sharding: learners report before they contribute to the next sync round, so it is what
      is committed when the last part has been written;
    * dynamic sharding, with sync rounds: it is what was committed when the sync round resolved
      (``fix``);
    * dynamic sharding, where each commits by its own word: there is no common instant. Each learner
      *cuts*: it keeps its model, and says what that contains and is not committed yet. The
      checkpoint counts what was committed when it was ordered, what each committed until its own
      cut, and what it said there: a minibatch is in it if, and only if, it is in the kept model of
      its trainer. If a member dies or leaves before it has cut and written its part, or one joins
      before all have cut, such a checkpoint is given up; the one before it stays, and if it was
      asked for, or one has joined, another follows.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the next checkpoint, where there are no sync rounds to number them."""
        self.keeping: int | None = None
        """The number of the checkpoint that is under way: its sync round, where there are any."""
        self.asked = False
        """Whether a person has asked for one now."""
        self._is_asked_for = False
        """Whether the one that is due was asked for; if it is given up, another follows."""
        self._awaited: int | None = None
        """The one that was asked for, until its parts are written."""
        self._reached = 0
        self._committed: dict[int, list[Range]] = {}
        self._parts: dict[int, set[Address]] = {}
        self._cutting: RangeSet | None = None
        self._uncut: set[Address] = set()
        self._ordered: dict[int, set[Address]] = {}
        self._errors: dict[int, str] = {}

    def due(self, every: int, committed: int) -> bool:
        """Whether one was asked for, or a multiple of ``every`` passed since the last was due."""
        if not every:
            return False
        self._is_asked_for, self.asked = self.asked, False
        if not self._is_asked_for and committed // every <= self._reached // every:
            return False
        self._reached = committed
        return True

    def fix(self, before: int, after: int, committed: Iterable[Range]) -> None:
        """Notes what is committed, if the rounds just resolved include the checkpoint's."""
        if self.keeping is not None and before <= self.keeping < after:
            self._committed[self.keeping] = list(committed)

    # Without sync rounds.

    @property
    def cutting(self) -> bool:
        """Whether some member has still to cut."""
        return self._cutting is not None

    def order(self, members: Collection[Address], committed: Iterable[Range]) -> None:
        """Begins a checkpoint: all members are to cut."""
        self.keeping, self.number = self.number, self.number + 1
        self._cutting, self._uncut = RangeSet(committed), set(members)
        self._ordered[self.keeping] = set(members)
        if self._is_asked_for:
            self._awaited = self.keeping

    def add(self, owner: Address, ranges: Iterable[Range]) -> None:
        """Counts work that a learner, which has not cut yet, has committed itself."""
        if self._cutting is not None and owner in self._uncut:
            for start, stop in ranges:
                self._cutting.add(start, stop)

    def cut(self, who: Address, number: int, ranges: Sequence[Range]) -> None:
        """Notes that a learner keeps its model, which contains ``ranges``, too."""
        if self._cutting is None or number != self.keeping:
            return
        self.add(who, ranges)
        self._uncut.discard(who)
        if not self._uncut:
            assert self.keeping is not None
            self._committed[self.keeping] = list(self._cutting)
            self._cutting = None

    @property
    def is_awaited(self) -> bool:
        """Whether a checkpoint that was asked for is not complete yet."""
        return self.asked or self.cutting or self._awaited is not None

    def join(self) -> None:
        """Gives up the checkpoint for which some have still to cut: others may get the shards."""
        if self._cutting is not None:
            self._reached = 0
            self._give_up({self.number - 1})

    def remove(self, who: Address) -> None:
        """Gives up checkpoints for which a member that is gone has not cut or written its part.

        What others commit of it now may be in nobody's kept model.
        """
        given_up = {
            number
            for number, members in self._ordered.items()
            if who in members and who not in self._parts.get(number, ())
        }
        if self._cutting is not None:
            given_up.add(self.number - 1)
        self._give_up(given_up)

    def _give_up(self, given_up: Collection[int]) -> None:
        self._cutting, self._uncut = None, set()
        for number in given_up:
            self._committed.pop(number, None)
        if self._awaited in given_up:
            self._awaited, self.asked = None, True

    # Parts.

    def part(self, who: Address, number: int, error: str = "") -> None:
        """Notes that a part is written or, with an ``error``, could not be."""
        if error:
            self._errors.setdefault(number, f"{who.name}: {error}")
        self._parts.setdefault(number, set()).add(who)

    def whole(self, number: int, living: Collection[Address]) -> list[Range] | None:
        """What is committed in a checkpoint whose parts are all written, else None.

        Empty: what is committed now. To be called after each part, and when a member is gone.
        """
        parts, ordered = self._parts.get(number, set()), self._ordered.get(number)
        wanted = living if ordered is None else ordered
        if not wanted or len(parts) < len(wanted) or not parts.issuperset(wanted):
            return None
        if ordered is not None and number not in self._committed:
            return None  # It was given up.
        self._parts = {n: p for n, p in self._parts.items() if n > number}
        self._ordered.pop(number, None)
        self._awaited = None if number == self._awaited else self._awaited
        return self._committed.pop(number, [])

    def take_error(self, number: int) -> str:
        """The error for which a checkpoint is given up after its last part; empty: none."""
        error = self._errors.get(number, "")
        self._errors = {n: e for n, e in self._errors.items() if n > number}
        return error
