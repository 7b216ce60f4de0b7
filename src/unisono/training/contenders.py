"""The ways of training that ``unisono bench`` compares."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.strategies import (
    ADPSGD,
    AllReduce,
    AveragedServer,
    Averaging,
    DelayByOne,
    Elastic,
    GossipFixed,
    GossipRandom,
    Server,
    Sharding,
    Solo,
)
from unisono.strategies.base import Strategy


@dataclass(frozen=True)
class Contender:
    """One row of the table."""

    name: str
    strategy: Strategy | None = None
    alone: bool = False
    """Only the first process works; the ceiling is the bare loop."""
    waits: bool = False
    """Whether processes wait for each other, so that they must end together."""
    every: int = 4096
    """Examples between averages, where the way is not ours."""


CONTENDERS = [
    Contender("bare", alone=True),
    Contender("solo", Solo(), alone=True),
    Contender("independent"),
    Contender("ddp", waits=True),
    Contender("postlocal", waits=True),
    Contender("allreduce", AllReduce()),
    Contender("averaging", Averaging()),
    Contender("averaging-static", Averaging(sharding=Sharding.STATIC)),
    Contender("server", Server()),
    Contender("averaged-server", AveragedServer()),
    Contender("elastic", Elastic()),
    Contender("gossip-fixed", GossipFixed()),
    Contender("gossip-random", GossipRandom()),
    Contender("adpsgd", ADPSGD()),
    Contender("delay-by-one", DelayByOne()),
]
