"""How learners agree: one file a family."""

from __future__ import annotations

from unisono.strategies.allreduce import AllReduce
from unisono.strategies.averaging import Averaging
from unisono.strategies.base import Division
from unisono.strategies.delay import DelayByOne
from unisono.strategies.gossip import GossipFixed, GossipRandom
from unisono.strategies.outer import BlockMomentum, Nesterov, Plain, SlowMo
from unisono.strategies.registry import make, names
from unisono.strategies.selection import Bid, Everybody, KeepGood, Selection
from unisono.strategies.server import AveragedServer, Server
from unisono.strategies.solo import Solo

__all__ = [
    "AllReduce",
    "AveragedServer",
    "Averaging",
    "Bid",
    "BlockMomentum",
    "DelayByOne",
    "Division",
    "Everybody",
    "GossipFixed",
    "GossipRandom",
    "KeepGood",
    "Nesterov",
    "Plain",
    "Selection",
    "Server",
    "SlowMo",
    "Solo",
    "make",
    "names",
]
