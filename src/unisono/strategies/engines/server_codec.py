"""Pushes to a server's shards and pulls from them, in few bits.

With Q the rounding of the precision, a learner pushes Q(u + e) for an update u, and keeps what was
rounded off as the next e (``error_feedback``). For each learner the holder of shards x keeps the
values p that this learner has, and answers with Q(x - p), which both add to p: what is rounded off
stays in the next difference, so the learner's copy follows the shards. What a learner sends to
shards in its own process does not travel, and is not rounded.
"""

from __future__ import annotations

from unisono.fabric import Address, Precision, Vector
from unisono.strategies.engines.error_feedback import send_off
from unisono.strategies.engines.shards import Run


class PushCodec:
    """A learner's side of pushes: what it has not pushed yet, by runs of shards."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self.unsent: Vector | None = None

    def begin(self, update: Vector) -> None:
        """An update is to be pushed: what is left of those before goes with it."""
        if self._precision is Precision.FLOAT32:
            return
        if self.unsent is None:
            self.unsent = update.copy()
            self.unsent.scale(0.0)
        update.add(self.unsent)

    def encode(self, piece: Vector) -> Vector:
        """A piece of the update as it travels to another process."""
        return piece.encoded(self._precision)

    def applied(self, piece: Vector, span: tuple[int, int], *, travelled: bool) -> None:
        """A piece is in the shards: what was rounded off is left."""
        if self.unsent is None:
            return
        rest = self.unsent.slice(*span)
        rest.assign(piece)
        if travelled:
            send_off(rest, self._precision)
        else:
            rest.scale(0.0)


class PullCodec:
    """Both sides of pulls, of one member.

    Each answer has a number, which the learner says in its next request: if it is not that of the
    last one (an answer came too late to be used, or the shards have moved), the answer holds the
    values themselves.
    """

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._sent: dict[tuple[Address, Run], tuple[int, Vector]] = {}
        """What a learner has of a run of shards that is here, and the answer that made it so."""
        self._taken: dict[Run, tuple[Address, int]] = {}
        """Whose answer this learner's copy of a run comes from."""
        self._answers = 0

    def answer(self, to: Address, run: Run, base: int, values: Vector) -> tuple[int, bool, Vector]:
        """For the holder: the answer's number, whether it is a difference, and the vector."""
        if self._precision is Precision.FLOAT32:
            return 0, False, values
        number, known = self._sent.get((to, run), (0, values))
        if number == 0 or number != base:
            return self.agree(to, run, values), False, values
        change = values.copy()
        change.add(known, -1.0)
        coded = change.encoded(self._precision)
        known.add(coded.decoded(self._precision, known))
        self._answers += 1
        self._sent[to, run] = (self._answers, known)
        return self._answers, True, coded

    def agree(self, to: Address, run: Run, values: Vector) -> int:
        """For the holder: the number of an answer after which the learner has these values."""
        if self._precision is Precision.FLOAT32:
            return 0
        self._answers += 1
        self._sent[to, run] = (self._answers, values.copy())
        return self._answers

    def forget(self) -> None:
        """The members have changed, and with them who holds what: all begin anew."""
        self._sent.clear()

    def base(self, run: Run, holder: Address) -> int:
        """For the learner: which answer of this holder its copy of the run comes from; 0: none."""
        whose, number = self._taken.get(run, (holder, 0))
        return number if whose == holder else 0

    def take(
        self,
        part: Vector,
        run: Run,
        answer: tuple[Address, int],
        vector: Vector | None,
        *,
        difference: bool,
    ) -> None:
        """For the learner: brings its copy of a run up to date; without a vector it is."""
        if vector is None:
            pass
        elif difference:
            part.add(vector.decoded(self._precision, part))
        else:
            part.assign(vector)
        overlapping = [r for r in self._taken if r[0] < run[1] and run[0] < r[1]]
        for other in overlapping:
            del self._taken[other]
        self._taken[run] = answer
