"""Events such as learners write while a run is watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from unisono.runs import Event


@dataclass
class Cluster:
    """Writes the events of learners that train for a while, a second at a time."""

    learners: int
    take: Callable[[Event], object]
    time: float = 0.0
    speed: dict[int, float] = field(default_factory=dict)
    """Examples a second of computing, where they are not 1000."""
    waits: bool = False
    """Whether all wait for the slowest, as in a sync round every second."""
    here: set[int] = field(default_factory=set)
    trained: dict[int, float] = field(default_factory=dict)
    rounds: int = 0

    def tell(self, event: str, learner: int | None = None, **fields: Any) -> None:
        self.take({"event": event, "time": self.time, "learner": learner, **fields})

    def start(self) -> None:
        self.tell("start", lines=["strategy  averaging"])
        for n in range(self.learners):
            self.join(n)

    def join(self, n: int) -> None:
        self.here.add(n)
        self.trained[n] = 0.0
        self.tell("joined", n, host=f"host{n}", device="cpu")

    def lose(self, n: int) -> None:
        self.here.discard(n)
        self.tell("lost", n, reason="its process ended")

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time += 1.0
            speeds = {n: self.speed.get(n, 1000.0) for n in self.here}
            slowest = min(speeds.values(), default=0.0)
            for n, speed in sorted(speeds.items()):
                rate = slowest if self.waits else speed
                self.trained[n] += rate
                wait = 1 - rate / speed
                self.tell(
                    "train",
                    n,
                    examples=self.trained[n],
                    rate=rate,
                    loss=3.0,
                    progress=self.time / 1000,
                    data_wait_s=0.0,
                    round_wait_s=wait + 0.01 if self.waits else 0.0,
                )
                if self.waits:
                    about = {"members": len(self.here), "weight": 1}
                    self.tell("round", n, round=self.rounds, time_s=wait + 0.01, **about)
            self.rounds += 1
