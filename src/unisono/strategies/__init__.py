"""How learners share what they learn: one file per family."""

from __future__ import annotations

from unisono.fabric import Precision
from unisono.strategies.allreduce import AllReduce
from unisono.strategies.averaging import Averaging
from unisono.strategies.base import Sharding
from unisono.strategies.delay_by_one import DelayByOne
from unisono.strategies.elastic import Elastic
from unisono.strategies.gossip import ADPSGD, GossipFixed, GossipRandom
from unisono.strategies.outer_steps import BlockMomentum, Nesterov, Plain, SlowMo
from unisono.strategies.registry import make, names
from unisono.strategies.selection import AllModels, Candidate, KeepGood, Selection
from unisono.strategies.server import AveragedServer, PushKind, Server
from unisono.strategies.solo import Solo

__all__ = [
    "ADPSGD",
    "AllModels",
    "AllReduce",
    "AveragedServer",
    "Averaging",
    "BlockMomentum",
    "Candidate",
    "DelayByOne",
    "Elastic",
    "GossipFixed",
    "GossipRandom",
    "KeepGood",
    "Nesterov",
    "Plain",
    "Precision",
    "PushKind",
    "Selection",
    "Server",
    "Sharding",
    "SlowMo",
    "Solo",
    "make",
    "names",
]
