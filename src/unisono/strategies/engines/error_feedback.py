"""Error feedback for sync rounds of quantised vectors.

With Q the rounding of a precision (``Vector.encoded`` and ``decoded``), a member that would send
the vectors d_1, d_2, ... sends

    c_t = Q(d_t + e_{t-1})        e_t = d_t + e_{t-1} - c_t        e_0 = 0

so that sum_t c_t + e_T = sum_t d_t: what is rounded off in one round is added in the next, and the
error of the sum never exceeds that of one round (Karimireddy et al. 2019,
https://arxiv.org/abs/1901.09847). The mean of a slice, which is rounded once more on its way to
all, has a residual of its own at the slice's owner (Tang et al. 2019,
https://arxiv.org/abs/1905.05957).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unisono.fabric import Precision, Vector

Bounds = tuple[int, int]


@dataclass
class Residuals:
    """One member's residuals, as a contributor and as the owner of slices."""

    own: Vector | None = None
    means: dict[Bounds, Vector] = field(default_factory=dict)
    """By slice. When the members change, so do the slices, and residuals start at zero."""

    def vectors(self) -> dict[str, Vector]:
        """For a checkpoint."""
        named = {f"residual.{start}.{stop}": mean for (start, stop), mean in self.means.items()}
        if self.own is not None:
            named["residual"] = self.own
        return {name: vector.copy() for name, vector in named.items()}

    @classmethod
    def load(cls, vectors: dict[str, Vector]) -> Residuals:
        """The inverse of ``vectors``; takes them out of the dictionary."""
        found = cls(own=vectors.pop("residual", None))
        for name in [name for name in vectors if name.startswith("residual.")]:
            start, stop = name.split(".")[1:]
            found.means[int(start), int(stop)] = vectors.pop(name)
        return found


def send_off(total: Vector, precision: Precision) -> Vector:
    """Encodes ``total``, which becomes the residual."""
    coded = total.encoded(precision)
    if coded is total:  # It has no fewer bits.
        coded = total.copy()
    total.difference(total, coded.decoded(precision, total))
    return coded
