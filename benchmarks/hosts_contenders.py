"""What ``benchmarks/hosts.py`` times and trains, and what its processes say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.fabric import Precision, SizeVector

HOSTS = 4
MINIBATCH = 256
TIMEOUT_S = 60.0
PACES = (512, 2048, 8192, 32768)
MEGABITS = {"fast": 100, "slow": 50, "far": 100, "bits": 50}
FLOAT32, BFLOAT16, INT8, INT4 = "float32", "bfloat16", "int8", "int4"
_NAMES = {
    "solo": ["strategy.name=solo"],
    "averaging-static": ["strategy.name=averaging", "strategy.sharding=static"],
    "averaging": ["strategy.name=averaging"],
    "gossip-random": ["strategy.name=gossip-random"],
    "allreduce": ["strategy.name=allreduce"],
    "delay-by-one": ["strategy.name=delay-by-one"],
    "server": ["strategy.name=server"],
}
PACED = ("averaging-static", "averaging", "gossip-random")
_DEALT = ("averaging-static", "allreduce", "delay-by-one")
_WAIT = ("averaging-static", "allreduce")
STEPS = {"allreduce": 1, "delay-by-one": 1, "server": 8}
"""Minibatches a round of those whose pace is their own."""


@dataclass(frozen=True)
class Contender:
    """A strategy at a pace: ``every`` so many examples of a learner a round."""

    name: str
    every: int
    precision: str = FLOAT32

    @property
    def key(self) -> str:
        """What it is called where results are kept."""
        return f"{self.name}|{self.every}|{self.precision}"

    @property
    def sets(self) -> list[str]:
        """Its settings."""
        sets = [f"learners={HOSTS if self.shares else 1}", *_NAMES[self.name]]
        sets += [f"strategy.every={self.every}"] if self.name in PACED else []
        return sets + ([f"strategy.precision={self.precision}"] if self.shares else [])

    @property
    def shares(self) -> bool:
        """Whether it is more than four that know nothing of each other."""
        return self.name != "solo"

    @property
    def static(self) -> bool:
        """Whether it comes to the same model however fast anything is."""
        return self.name in _DEALT

    def limit(self, parameters: int, examples_per_s: float, megabits: float) -> float:
        """The ratio that the cables alone allow; see ``benchmarks/hosts.py``."""
        if not self.shares:
            return 1.0
        models = 2.0 if self.name == "gossip-random" else 2 * (HOSTS - 1) / HOSTS
        size = SizeVector(parameters).encoded(Precision(self.precision)).nbytes
        wire = models * size / (megabits / 8 * 1e6)
        compute = self.every / examples_per_s
        return compute / (compute + wire) if self.name in _WAIT else min(1.0, compute / wire)


def at_pace(every: int, precisions: Sequence[str] = (FLOAT32, BFLOAT16)) -> list[Contender]:
    """Those whose pace can be chosen."""
    return [Contender(name, every, precision) for name in PACED for precision in precisions]


def each_step() -> list[Contender]:
    """Those whose pace is their own."""
    contenders = [Contender(name, MINIBATCH * steps) for name, steps in STEPS.items()]
    return contenders + [
        Contender(w.name, w.every, BFLOAT16) for w in contenders if w.name in _DEALT
    ]


CONTENDERS = {
    "fast": [
        Contender("solo", MINIBATCH),
        *(way for every in PACES for way in at_pace(every)),
        *each_step(),
    ],
    "slow": [way for every in PACES[2:] for way in at_pace(every)],
    "bits": [
        Contender(name, PACES[2], precision)
        for name in ("averaging-static", "averaging")
        for precision in (FLOAT32, BFLOAT16, INT8, INT4)
    ],
    "far": [*(way for every in PACES[2:] for way in at_pace(every, (FLOAT32,))), *each_step()[:3]],
}
TRAINED = [
    way for way in CONTENDERS["fast"][1:] if way.precision == FLOAT32 or way.every in PACES[2:]
]


@dataclass(frozen=True)
class Timing:
    """One turn of a way; of one learner, but for the steps of all."""

    way: str
    turn: int
    ratio: float
    steps: float
    rounds: float
    bytes: float


@dataclass(frozen=True)
class Order:
    """What a host is to do next."""

    coordinator: str = ""
    """Where it is reached; empty: nothing is shared."""
    credentials: str = ""
    sets: tuple[str, ...] = ()
    seconds: float = 0.0
    """To time the settings for."""
    run: str = ""
    """To train, instead."""


@dataclass(frozen=True)
class Speed:
    """What one host did in its window."""

    steps: float
    """A second, as the others."""
    rounds: float
    bytes: float
