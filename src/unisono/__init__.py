"""Unisono: many machines, one voice. Choose with one word how the learners agree."""

from __future__ import annotations

from unisono.errors import UserError
from unisono.learner.learner import Learner
from unisono.strategies import (
    AllReduce,
    AveragedServer,
    Averaging,
    BlockMomentum,
    DelayByOne,
    GossipFixed,
    GossipRandom,
    Nesterov,
    Plain,
    PushKind,
    Server,
    Sharding,
    SlowMo,
    Solo,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "AllReduce",
    "AveragedServer",
    "Averaging",
    "BlockMomentum",
    "DelayByOne",
    "GossipFixed",
    "GossipRandom",
    "Learner",
    "Nesterov",
    "Plain",
    "PushKind",
    "Server",
    "Sharding",
    "SlowMo",
    "Solo",
    "UserError",
]
