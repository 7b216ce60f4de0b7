"""The state of a run by its events: who takes part, what they do, what was learned."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unisono.report.history import number
from unisono.runs.metrics import Event, goes_on
from unisono.watch.curves import MeanCurve, Point
from unisono.watch.event_text import describe
from unisono.watch.learner_state import Exchange, LearnerState, Presence
from unisono.watch.slowness import Links, SlowLearners

MOST_ROUNDS = 4000
"""Rounds of learners that the timeline shows."""
MOST_LINES = 200
_SYNC_ROUNDS = 64
"""Sync rounds of which some members may still tell."""
_BEAT_S = 3.0
"""Seconds in which a learner that is not silent has sent a heartbeat."""


@dataclass
class Life:
    """One learner from its coming to its end; times are of the run's clock."""

    learner: int
    begun: float
    ended: float | None = None
    lost: bool = False


@dataclass(frozen=True)
class LogLine:
    """What happened, in words."""

    time: float
    text: str
    bad: bool


class LiveRun:
    """Takes the events of a run in order, even if they lack fields.

    Attributes:
        time: of the last event, by the run's clock, which goes on over resumptions.
        lines: how the strategy describes itself.
        simulated: whether the clock is virtual.
        learners: all that ever came, by number.
        pool: the last counts of minibatches.
        progress: share of all minibatches that were handed out, 0 to 1.
        lives: of all learners, in order.
        rounds: the last ones, as (number, learner, begin, end).
        log: the last lines, each with its number.
        links: over a network, as far as they were measured.
        slow: who is slow.
        heldout: log-prob of the consensus against time.
        loss: the learners' mean.
        accuracy: the last one, of the held-out frames.
        shared: rounds of all learners together, or, where each has its own, of all in sum.
        failure: why the run has failed.
        stop_requested: whether somebody has asked for its end.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.lines: list[str] = []
        self.simulated = False
        self.learners: dict[int, LearnerState] = {}
        self.pool: dict[str, float] = {}
        self.progress = 0.0
        self.lives: list[Life] = []
        self.rounds: deque[tuple[int, int, float, float]] = deque(maxlen=MOST_ROUNDS)
        self.log: deque[tuple[int, LogLine]] = deque(maxlen=MOST_LINES)
        self.links = Links()
        self.slow = SlowLearners()
        self.heldout: list[Point] = []
        self.loss = MeanCurve()
        self.accuracy: float | None = None
        self.shared = 0
        self.failure = ""
        self.stop_requested = False
        self.lost = 0
        self._offset = 0.0
        self._exchanges: dict[int, Exchange] = {}
        self._next_round = 0
        self._next_line = 0
        self._takers = {
            "start": self._start,
            "strategy": self._strategy,
            "joined": self._joined,
            "lost": self._lost,
            "left": self._left,
            "leaves": self._left,
            "train": self._train,
            "round": self._round,
            "validation": self._validation,
            "status": self._status,
            "failed": self._failed,
            "requested": self._requested,
        }

    def take(self, event: Event) -> None:
        """Takes one more event; those with unknown names only go to the log."""
        name, time = event["event"], float(event["time"])
        if goes_on(event, self.time - self._offset):
            self._offset = self.time - time
        time += self._offset
        taker = self._takers.get(name)
        text = describe(event)
        if text:
            bad = name in ("lost", "server_lost", "failed", "diverged")
            self.log.append((self._next_line, LogLine(time, text, bad)))
            self._next_line += 1
        if taker is not None:
            taker(time, event)
        self.time = max(self.time, time)

    @property
    def here(self) -> list[LearnerState]:
        """The learners that take part."""
        return [learner for learner in self.learners.values() if learner.is_here]

    @property
    def examples(self) -> float:
        """Examples trained by all learners."""
        return sum(learner.examples for learner in self.learners.values())

    @property
    def mean_rate(self) -> float:
        """Examples a second, from the first learner's coming to the last one's end."""
        seconds = max((life.ended or self.time for life in self.lives), default=0.0)
        seconds -= min((life.begun for life in self.lives), default=0.0)
        return self.examples / seconds if seconds > 0 else 0.0

    def _start(self, time: float, event: Event) -> None:
        lines = event.get("lines")
        self.lines = [str(line) for line in lines] if isinstance(lines, list) else []
        self.simulated = event.get("simulated") is True
        self.failure, self.stop_requested = "", False
        for learner in self.here:  # of a run that was killed, and goes on
            self._end(learner, time, Presence.LEFT, "the run was stopped")
        self._exchanges.clear()

    def _strategy(self, time: float, event: Event) -> None:
        """A loop of one's own describes its strategy once its learners have met."""
        lines = event.get("lines")
        self.lines = [str(line) for line in lines] if isinstance(lines, list) else self.lines

    def _joined(self, time: float, event: Event) -> None:
        learner = self._learner(event)
        if learner is None:
            return
        if learner.is_here and learner.lives:
            self._end(learner, time, Presence.LEFT, "")
        learner.join(time, event)
        self.lives.append(Life(learner.number, time))

    def _lost(self, time: float, event: Event) -> None:
        learner = self._learner(event)
        if learner is not None:
            self.lost += 1
            self._end(learner, time, Presence.LOST, str(event.get("reason") or ""))

    def _left(self, time: float, event: Event) -> None:
        learner = self._learner(event)
        if learner is None:
            return
        links = event.get("links")
        for link in links if isinstance(links, list) else []:
            self._link(learner, link, time)
        if learner.is_here:
            self._end(learner, time, Presence.LEFT, "")

    def _train(self, time: float, event: Event) -> None:
        learner = self._learner(event)
        if learner is None:
            return
        self._appear(learner, time)
        learner.train(time, event)
        self.progress = max(self.progress, number(event, "progress") or 0.0)
        loss = number(event, "loss")
        if loss is not None:
            self.loss.add(time, loss)

    def _round(self, time: float, event: Event) -> None:
        learner = self._learner(event)
        if learner is None:
            return
        self._appear(learner, time)
        place = number(event, "round")
        is_sync = "members" in event and "weight" in event and place is not None
        exchange = Exchange()
        if is_sync and place is not None:
            exchange = self._exchanges.setdefault(int(place), exchange)
            self.shared = max(self.shared, int(place) + 1)
            while len(self._exchanges) > _SYNC_ROUNDS:
                del self._exchanges[next(iter(self._exchanges))]
        else:
            self.shared += 1
        learner.round(time, exchange, event)
        seconds = number(event, "time_s") or 0.0
        self.rounds.append((self._next_round, learner.number, time - seconds, time))
        self._next_round += 1

    def _validation(self, time: float, event: Event) -> None:
        logprob = number(event, "logprob")
        if logprob is not None:
            self.heldout.append((time - (number(event, "age_s") or 0.0), logprob))
            self.heldout.sort()
        self.accuracy = number(event, "accuracy")

    def _status(self, time: float, event: Event) -> None:
        names = ("total", "free", "leased", "committed", "returned", "redone", "skipped", "dropped")
        self.pool = {name: number(event, name) or 0 for name in names}
        silent, phases = _table(event, "silent"), _table(event, "phases")
        for learner in self.here:
            key = str(learner.number)
            quiet = number(silent, key)
            learner.silent_since = None if quiet is None else time - quiet
            if quiet is None:
                learner.heard = max(learner.heard, time - _BEAT_S)
            phase = _table(phases, key)
            seconds = number(phase, "seconds")
            if seconds is not None:
                learner.doing, learner.doing_since = str(phase.get("doing")), time - seconds
            self._link(learner, phase.get("link"), time)

    def _failed(self, time: float, event: Event) -> None:
        self.failure = str(event.get("reason") or "it failed")

    def _requested(self, time: float, event: Event) -> None:
        learner = self._learner(event) if event.get("action") == "remove" else None
        if learner is not None:
            learner.removed = True
        self.stop_requested = self.stop_requested or event.get("action") == "stop"

    def _link(self, learner: LearnerState, link: Any, time: float) -> None:
        if isinstance(link, dict):
            nbytes, seconds = number(link, "bytes"), number(link, "seconds")
            if nbytes and seconds:
                sender, receiver = f"learner {learner.number}", str(link.get("receiver"))
                self.links.measured(sender, receiver, nbytes, seconds, time)

    def _learner(self, event: Event) -> LearnerState | None:
        which = event["learner"]
        if isinstance(which, bool) or not isinstance(which, int):
            return None
        return self.learners.setdefault(which, LearnerState(which, presence=Presence.LEFT))

    def _appear(self, learner: LearnerState, time: float) -> None:
        """Of a learner that nobody has told of: its metrics begin in the middle."""
        if not learner.lives:
            learner.join(time, {})
            self.lives.append(Life(learner.number, time))

    def _end(self, learner: LearnerState, time: float, how: Presence, reason: str) -> None:
        learner.go(time, how, reason)
        for life in reversed(self.lives):
            if life.learner == learner.number:
                if life.ended is None:
                    life.ended, life.lost = time, how is Presence.LOST
                return


def _table(event: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = event.get(key)
    return value if isinstance(value, dict) else {}
