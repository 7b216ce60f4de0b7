"""The order of an epoch's examples: a keyed permutation that can be entered anywhere."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# Odd constants of the splitmix64 generator: the step between states and the two multipliers.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

_HALF_ROUNDS = 8
_SMALL_HALF_ROUNDS = 24
_SMALL_SIDE = 16
_MOST_EXAMPLES = 2**62
# Places computed at a time: the four working arrays of a block stay in a core's own cache.
_BLOCK = 8192


class Order:
    """A keyed permutation of `examples` examples, one for each (seed, epoch), without a table.

    Let n be the number of examples, a = ceil(sqrt n) and b = ceil(n / a), so that ab >= n and
    ab - n < a. A place x in [0, ab) is written as a pair (l, r) in Z_a x Z_b, x = l b + r, and
    goes through half rounds that alternate between the two sides,

        even j:  l <- (l + F_j(r)) mod a        odd j:  r <- (r + F_j(l)) mod b

    with F_j(v) = floor(m h / 2^32), where m is the modulus (a or b) and h the upper 32 bits of
    the splitmix64 mix of v + key(seed, epoch, j).

    It is a bijection of [0, ab): a half round leaves one side as it is, so F_j of that side is
    known afterwards and can be subtracted again; each half round has an inverse whatever F_j is,
    and so has their composition P. It is made a bijection of [0, n) by walking the cycles of P:
    from x in [0, n), apply P until the value is below n. The walk ends because the cycle leads
    back to x itself; it is injective because the predecessor below n on a cycle is unique. Fewer
    than a of the ab values are n or more, so a walk takes 1 + O(1 / sqrt n) steps on average, and
    the cost of a place depends neither on the place nor on n: seek is O(1).

    Eight half rounds mix large n. Where a side is shorter than 16 a half round has few F_j to
    choose from (4 for n = 3), and 24 are made: then all orders of 2 to 6 examples have exactly
    computed probabilities within 0.0004 (total variation) of equal. Where n = ab with a and b
    both odd (9, 25, ...) all half rounds are even permutations, so odd ones do not occur there.

    Nothing here depends on the machine, on numpy's generators or on how the places are cut into
    calls: a run that resumes elsewhere sees the same order.

    Attributes:
        examples: How many examples the order permutes.
        seed: The seed; any integer, taken modulo 2^64.
    """

    def __init__(self, examples: int, seed: int) -> None:
        """Makes the order of `examples` examples (1 to 2^62) for `seed`.

        Raises:
            ValueError: There are no examples, or too many.
        """
        if not 1 <= examples <= _MOST_EXAMPLES:
            raise ValueError(f"an order is of 1 to 2^62 examples, not {examples}")
        self.examples = examples
        self.seed = seed
        self._left = math.isqrt(examples - 1) + 1
        self._right = -(-examples // self._left)
        self._cached_keys = (-1, np.empty(0, dtype=np.uint64))

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Says which examples stand at places `start` to `stop - 1` of an epoch's order.

        Args:
            epoch: The epoch, 0 or more.
            start: The first place.
            stop: One past the last place; at most `examples`.

        Returns:
            The examples, in order, each in [0, examples).

        Raises:
            ValueError: The epoch is negative, or the places are not within the epoch.
        """
        if epoch < 0:
            raise ValueError(f"epochs count from 0: {epoch}")
        if not 0 <= start <= stop <= self.examples:
            raise ValueError(f"places {start}..{stop} are not within 0..{self.examples}")
        keys = self._epoch_keys(epoch)
        found = np.arange(start, stop, dtype=np.uint64)
        for first in range(0, len(found), _BLOCK):
            self._permute(found[first : first + _BLOCK], keys)
        walking = np.flatnonzero(found >= self.examples)
        while len(walking):
            values = found[walking]
            self._permute(values, keys)
            found[walking] = values
            walking = walking[values >= self.examples]
        return found.view(np.int64)

    def _epoch_keys(self, epoch: int) -> NDArray[np.uint64]:
        """The key of each half round; kept, because calls come many to an epoch."""
        cached, keys = self._cached_keys
        if cached != epoch:
            rounds = _SMALL_HALF_ROUNDS if self._left < _SMALL_SIDE else _HALF_ROUNDS
            keys = np.zeros(rounds, dtype=np.uint64)
            words = (
                np.uint64(self.seed % 2**64),
                np.uint64(epoch),
                np.arange(rounds, dtype=np.uint64),
            )
            for word in words:
                keys += word
                keys += _STEP
                _mix(keys, np.empty_like(keys))
            self._cached_keys = epoch, keys
        return keys

    def _permute(self, values: NDArray[np.uint64], keys: NDArray[np.uint64]) -> None:
        """Applies P in place."""
        sides = (np.uint64(self._left), np.uint64(self._right))
        left = values // sides[1]
        right = values - left * sides[1]
        halves = (left, right)
        mixed, scratch = np.empty_like(values), np.empty_like(values)
        for j, key in enumerate(keys):
            half, other, modulus = halves[j % 2], halves[1 - j % 2], sides[j % 2]
            np.add(other, key, out=mixed)
            _mix(mixed, scratch)
            mixed >>= np.uint64(32)
            mixed *= modulus
            mixed >>= np.uint64(32)
            half += mixed
            # Both were below the modulus, so one subtraction reduces the sum; where it is not
            # due it wraps round to a huge number, and the minimum keeps the sum.
            np.subtract(half, modulus, out=scratch)
            np.minimum(half, scratch, out=half)
        left *= sides[1]
        np.add(left, right, out=values)


def _mix(values: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    """The output function of splitmix64, in place: a bijection of 64 bits that avalanches."""
    for shift, multiplier in ((30, _FIRST), (27, _SECOND)):
        np.right_shift(values, np.uint64(shift), out=scratch)
        values ^= scratch
        values *= multiplier
    np.right_shift(values, np.uint64(31), out=scratch)
    values ^= scratch
