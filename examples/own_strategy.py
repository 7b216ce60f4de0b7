"""A strategy of your own: averaging that goes only a part of the way.

After each round a learner goes a share ``pull`` of the way to the mean of all, not all the way:

    x_i = x_i + pull (mean - x_i)

so that learners explore around a common centre; the mean of all stays where it is. The centre is
what is handed out, and where newcomers begin.

    python examples/own_strategy.py

runs the property suite on it. In a loop of your own:

    unisono.Learner(model, optimizer, PartialAveraging())

With a name, for ``unisono train --strategy partial-averaging``, in the pyproject.toml of your
package:

    [project.entry-points."unisono.strategies"]
    partial-averaging = "own_strategy:PartialAveraging"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from unisono.fabric import Vector
from unisono.strategies import Sharding
from unisono.strategies.base import (
    EXAMPLES,
    Replica,
    RoundPlan,
    Strategy,
    examples_to_minibatches,
)
from unisono.strategies.engines.model_rounds import ModelRoundsParticipant
from unisono.strategies.engines.sync_rounds import Contribution
from unisono.testing import Promises, check_strategy


@dataclass(frozen=True, kw_only=True)
class PartialAveraging(Strategy):
    """Periodic averaging that pulls learners towards their mean, and lets them be different."""

    every: int = field(default=8192, metadata=EXAMPLES)
    """Examples that a learner trains between two rounds."""
    pull: float = 0.5
    """How far a learner goes towards the mean: 0 not at all, 1 all the way."""
    sharding: Sharding = Sharding.DYNAMIC

    name: ClassVar[str] = "partial-averaging"
    paper: ClassVar[str] = "https://arxiv.org/abs/1412.6651"

    @property
    def waits(self) -> str:
        """Who waits for whom."""
        return "nobody" if self.sharding is Sharding.DYNAMIC else "everybody for the slowest"

    def round_plan(self, batch_size: int) -> RoundPlan:
        """Rounds of ``every`` examples."""
        share = examples_to_minibatches(self.every, batch_size)
        return RoundPlan(self.sharding, share=share, rounds=2)

    def participant(self, replica: Replica) -> PartialAveragingParticipant:
        """One learner's part."""
        return PartialAveragingParticipant(replica, self.pull)


class PartialAveragingParticipant(ModelRoundsParticipant):
    """One learner's part."""

    def __init__(self, replica: Replica, pull: float) -> None:
        super().__init__(replica)
        self._pull = pull

    def end_of_round(self, sync_round: int) -> None:
        """Static sharding: waits for the round."""
        self.sync(sync_round)

    def conclude(self, mean: Vector, contribution: Contribution, members: int) -> None:
        """The mean of a round is here: remembers it, and moves the learner some of the way."""
        with self.lock:
            self.agreed.assign(mean)
        contribution.vector.difference(mean, contribution.vector)
        contribution.vector.scale(self._pull)
        self.replica.add(contribution.vector)


if __name__ == "__main__":
    # Learners do not end where the mean is; all else that plain averaging promises, this does, too.
    for sharding in Sharding:
        check_strategy(
            lambda sharding=sharding: PartialAveraging(every=8, sharding=sharding),  # type: ignore[misc]
            promises=Promises(ends_equal=False),
        )
        print(f"partial-averaging, {sharding.value}: passed")
