"""summary.json: the results of a run, in the same keys for every strategy."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from unisono.text import counted


def _known(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite becomes None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Known = Annotated[float | None, BeforeValidator(_known)]
"""A number, or None where it was never measured."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Minibatches(_Part):
    """Counts of minibatches.

    Attributes:
        leased: handed to a learner.
        committed: their effect is in state that survives the learner.
        returned: given back untrained or uncommitted, by a death or an orderly leave.
        redone: trained again after they were returned.
        skipped: trained, but the step was not finite or was skipped by a gradient scaler.
        dropped: trained, but their effect was refused, for example as too stale.
    """

    leased: int = 0
    committed: int = 0
    returned: int = 0
    redone: int = 0
    skipped: int = 0
    dropped: int = 0


class Staleness(_Part):
    """Updates that the shared model saw between a gradient's parameters and its use.

    Attributes:
        mean: over all updates; 0 where there were none.
        max: the largest.
        histogram: updates by staleness.
    """

    mean: float = 0.0
    max: int = 0
    histogram: dict[int, int] = {}


class Exchanges(_Part):
    """Of learners that exchange models in pairs or with neighbours: how many exchanges took place.

    Attributes:
        due: as often as the learners' `every` asked for.
        completed: those of them that took place.
        computed: what one exchange of each learner leaves of the squared distance between models,
            by the mixing matrix.
        realised: the same with the share of exchanges that took place.
    """

    due: int
    completed: int
    computed: Known = None
    realised: Known = None

    @property
    def share(self) -> float:
        """Of those that were due."""
        return self.completed / self.due if self.due else 1.0


class LinkTraffic(_Part):
    """What one learner sent to another member.

    Attributes:
        sender: as people call it, such as `learner 0`.
        receiver: the same.
        bytes: of vectors.
        seconds: during which some of them were on their way over a network; 0 inside a machine.
    """

    sender: str
    receiver: str
    bytes: int
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes a second; infinite inside a machine."""
        return self.bytes / self.seconds if self.seconds > 0 else math.inf


class Slowest(_Part):
    """The slowest learner.

    Attributes:
        learner: its number.
        examples_per_s: examples a second of computing; waiting for others is no slowness.
    """

    learner: int
    examples_per_s: float


class Summary(_Part):
    """The results of a run. Log-probs are means per frame, in nats; None: not measured.

    Attributes:
        format_version: the version of these keys.
        strategy: how the learners shared what they learned.
        learners: how many the run began with.
        servers: processes that held shards and trained nothing.
        optimizer: each learner's optimizer.
        seed: seed of parameters and order.
        epochs: passes over the data that were asked for.
        examples: of the minibatches that were committed since the run was begun or last resumed.
        start_up_s: seconds until the last of the first learners had joined, or the others began.
        wall_s: seconds from then to the end of training.
        validation_stalled_s: seconds of it that learners stood still for validation, summed.
        examples_per_s: `examples / wall_s`.
        operations_per_s: of all learners, in the matrix products of the model; 0: not known.
        peak_memory: the most bytes that a learner took: on a GPU of tensors, on a CPU in all.
        data_wait_s: seconds that learners waited for data, summed over learners.
        train_logprob: of the training frames, at the end.
        validation_logprob: of the held-out frames, at the end.
        validation_accuracy: share of held-out frames classified rightly, 0..1.
        minibatches: how many went which way.
        rounds: acts of sharing.
        exchanges: of strategies that have them.
        bytes_sent: by all learners, for sharing.
        links: what each sent to each.
        slowest_link: of those over a network, the one with the fewest bytes a second.
        slowest_learner: of several.
        late_learners: whose pushes came after the staleness bound, several in a row.
        rolled_back: updates of a server's shards that went with their holder.
        staleness: of the updates.
        divergences: times that the run diverged and went back, over its whole life.
        rate_factor: what the learning rate is multiplied by since then; see `rate.factor`.
        learners_lost: learners that died, or diverged alone.
        learners_joined: learners that came after the begin.
        servers_lost: servers that died.
        ended: `finished`, `stopped` (on request), or `early` (all learners have left).
    """

    format_version: Literal[1] = 1
    strategy: str
    learners: int
    servers: int = 0
    optimizer: str
    seed: int
    epochs: int
    examples: int
    start_up_s: float = 0.0
    wall_s: float
    validation_stalled_s: float = 0.0
    examples_per_s: float
    operations_per_s: float = 0.0
    peak_memory: int = 0
    data_wait_s: float
    train_logprob: Known
    validation_logprob: Known
    validation_accuracy: Known
    minibatches: Minibatches
    rounds: int
    exchanges: Exchanges | None = None
    bytes_sent: int
    links: list[LinkTraffic] = []
    slowest_link: LinkTraffic | None = None
    slowest_learner: Slowest | None = None
    late_learners: list[int] = []
    rolled_back: int = 0
    staleness: Staleness
    divergences: int = 0
    rate_factor: float = 1.0
    learners_lost: int
    learners_joined: int
    servers_lost: int = 0
    ended: str

    def to_json(self) -> str:
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Summary:
        """Reads the text of summary.json.

        Raises:
            ValueError: it is not a summary; the text says why in one line.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(str(part) for part in fault["loc"])
            raise ValueError(f"{where}: {fault['msg']}" if where else fault["msg"]) from None

    def lines(self) -> list[str]:
        """Returns a few lines for a person."""
        people = counted(self.learners, "learner")
        came = f", lost {self.learners_lost}" if self.learners_lost else ""
        came += f", joined {self.learners_joined}" if self.learners_joined else ""
        if self.servers:
            came += f", {counted(self.servers, 'server')}"
            came += f", lost {self.servers_lost}" if self.servers_lost else ""
        share = self.data_wait_s / (self.wall_s * self.learners) if self.wall_s > 0 else 0.0
        went = {k: v for k, v in self.minibatches.model_dump().items() if v}
        return [
            f"strategy    {self.strategy}, {people}{came}, {self.optimizer}, seed {self.seed}",
            f"examples    {self.examples:,} in {self.wall_s:.1f} s: {self.examples_per_s:,.0f} a "
            f"second, {share:.1%} of the time waiting for data",
            f"log-prob    train {_number(self.train_logprob)}, held out "
            f"{_number(self.validation_logprob)} (nats a frame)",
            f"accuracy    held out {_number(self.validation_accuracy, '.2%')}",
            f"minibatches {', '.join(f'{k} {v:,}' for k, v in went.items()) or 'none'}",
            f"sharing     {counted(self.rounds, 'round')}, {self.bytes_sent / 1e6:,.1f} MB sent, "
            f"staleness mean {self.staleness.mean:.1f}, max {self.staleness.max}",
            *self._computing(),
            *self._remarks(),
            f"ended       {self.ended}",
        ]

    def _computing(self) -> list[str]:
        told = []
        if self.operations_per_s:
            unit, of = ("TFLOP/s", 1e12) if self.operations_per_s >= 1e12 else ("GFLOP/s", 1e9)
            told.append(f"{self.operations_per_s / of:.3g} {unit}")
        if self.peak_memory:
            whose = " a learner" if self.learners > 1 else ""
            told.append(f"at most {self.peak_memory / 1e9:,.2f} GB of memory{whose}")
        return [f"computing   {', '.join(told)}"] if told else []

    def _remarks(self) -> list[str]:
        lines = []
        if self.exchanges is not None:
            told = f"exchanges   {self.exchanges.share:.2f} of those due"
            if self.exchanges.computed is not None and self.exchanges.realised is not None:
                told += (
                    f": the squared distance shrinks to {self.exchanges.realised:.2g} with each "
                    f"(computed {self.exchanges.computed:.2g})"
                )
            lines.append(told)
        if self.divergences:
            times = counted(self.divergences, "time")
            lines.append(f"diverged    {times}; the learning rate is x {self.rate_factor:g}")
        if self.slowest_learner is not None:
            slow = self.slowest_learner
            rate = f"{slow.examples_per_s:,.0f} examples a second of computing"
            lines.append(f"slowest     learner {slow.learner}: {rate}")
        for late in self.late_learners:
            lines.append(f"late        learner {late}: its pushes are beyond the staleness bound")
        if self.rolled_back:
            lines.append(
                f"rolled back {counted(self.rolled_back, 'update')} of shards whose holder was lost"
            )
        if self.slowest_link is not None:
            link = self.slowest_link
            rate = f"{link.rate / 1e6:,.1f} MB/s, {link.bytes / 1e6:,.1f} MB"
            lines.append(f"slowest     link from {link.sender} to {link.receiver}: {rate}")
        return lines


def _number(value: float | None, form: str = ".4f") -> str:
    return "not measured" if value is None else format(value, form)
