"""Unisono trains on many machines; one word chooses how the learners share what they learn.

What is named here is imported when it is used: torch takes seconds, and a command line must be able
to answer, and to be interrupted, at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unisono.errors import UserError
    from unisono.learner.learner import Learner
    from unisono.strategies import (
        ADPSGD,
        AllReduce,
        AveragedServer,
        Averaging,
        BlockMomentum,
        DelayByOne,
        Elastic,
        GossipFixed,
        GossipRandom,
        Nesterov,
        Plain,
        Precision,
        PushKind,
        Server,
        Sharding,
        SlowMo,
        Solo,
    )
    from unisono.training.recognizer import Recognizer

__version__ = "0.1.0.dev0"

__all__ = [
    "ADPSGD",
    "AllReduce",
    "AveragedServer",
    "Averaging",
    "BlockMomentum",
    "DelayByOne",
    "Elastic",
    "GossipFixed",
    "GossipRandom",
    "Learner",
    "Nesterov",
    "Plain",
    "Precision",
    "PushKind",
    "Recognizer",
    "Server",
    "Sharding",
    "SlowMo",
    "Solo",
    "UserError",
]
_ELSEWHERE = {
    "Learner": "unisono.learner.learner",
    "Recognizer": "unisono.training.recognizer",
    "UserError": "unisono.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("unisono.learner.uncaught").install()
    globals()[name] = getattr(import_module(_ELSEWHERE.get(name, "unisono.strategies")), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
