"""The ways of training that ``unisono bench`` compares."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.strategies import (
    AllReduce,
    AveragedServer,
    Averaging,
    DelayByOne,
    Division,
    GossipFixed,
    GossipRandom,
    Server,
    Solo,
)
from unisono.strategies.base import Strategy


@dataclass(frozen=True)
class Way:
    """One row of the table."""

    name: str
    strategy: Strategy | None = None
    alone: bool = False
    """Only the first process works; the ceiling is the bare loop."""
    waits: bool = False
    """Whether processes wait for each other, so that they must end together."""
    every: int = Averaging().every
    """Examples between averages, where the way is not ours."""


WAYS = [
    Way("bare", alone=True),
    Way("solo", Solo(), alone=True),
    Way("independent"),
    Way("ddp", waits=True),
    Way("postlocal", waits=True),
    Way("allreduce", AllReduce()),
    Way("averaging", Averaging()),
    Way("averaging-drawn", Averaging(division=Division.DRAWN)),
    Way("server", Server()),
    Way("averaged-server", AveragedServer()),
    Way("gossip-fixed", GossipFixed()),
    Way("gossip-random", GossipRandom()),
    Way("delay-by-one", DelayByOne()),
]
