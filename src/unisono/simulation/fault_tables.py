"""Tables of hosts.toml for what goes wrong: stragglers, deaths, joins and partitions."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from unisono.config.tables import Amount, ConfigTable

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StragglerTable(ConfigTable):
    """`[host.straggler]`: when a host is slow, and how slow.

    Without further keys than ``factor`` always; with ``share`` at random minibatches; with
    ``for_s`` in a burst, with ``every_s`` in bursts.
    """

    factor: Annotated[float, Field(ge=1, le=1e6)] = Field(
        description="how many times longer a minibatch takes then"
    )
    share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="of the minibatches, drawn at random; unset: all"
    )
    from_s: Amount = Field(default=0.0, description="seconds from the start on")
    for_s: Seconds | None = Field(default=None, description="length of a burst; unset: no end")
    every_s: Seconds | None = Field(
        default=None, description="from one burst's begin to the next one's; unset: one burst"
    )


class FaultKind(str, Enum):
    """What happens to a host."""

    DEATH = "death"
    JOIN = "join"
    PARTITION = "partition"


class FaultTable(ConfigTable):
    """`[[fault]]`: what happens to a host, with all its learners, and when."""

    kind: Annotated[FaultKind, Field(strict=False)] = Field(
        description="death; join: it is not there before; partition: it reaches no other host"
    )
    host: str = Field(description="its name")
    at_s: Amount = Field(description="seconds from the start on")
    back_after_s: Seconds | None = Field(
        default=None, description="death: seconds until it is back; unset: it stays away"
    )
    for_s: Seconds | None = Field(default=None, description="partition: how long it lasts")

    def wrong_key(self) -> str:
        """What does not go together, from the key on; empty: nothing."""
        if self.kind is FaultKind.PARTITION and self.for_s is None:
            return "for_s is missing: how many seconds does the partition last?"
        if self.kind is not FaultKind.PARTITION and self.for_s is not None:
            return f"for_s is for partitions, and this is a {self.kind.value}"
        if self.kind is not FaultKind.DEATH and self.back_after_s is not None:
            return f"back_after_s is for deaths, and this is a {self.kind.value}"
        return ""
