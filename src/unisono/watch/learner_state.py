"""One learner of a run that is being watched: its last seconds."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from unisono.report.history import number
from unisono.runs.metrics import Event

WINDOW_S = 5.0
"""Seconds over which rates and waiting are taken."""
REPORT_S = 1.5
"""Seconds after a learner's last report from which on the time since counts, too."""
_HELD_BACK_S = 8.0
"""Seconds for which nothing is concluded from a single report: it holds the start-up, too."""


class Presence(Enum):
    """Whether a learner takes part."""

    HERE = "here"
    LOST = "lost"
    LEFT = "left"


@dataclass(frozen=True)
class Shares:
    """Where the time of the last seconds went; together 1.

    Attributes:
        computing: training, and whatever is not waiting.
        data: waiting for minibatches.
        others: waiting for other learners.
        exchanging: waiting for what is being sent.
    """

    computing: float = 1.0
    data: float = 0.0
    others: float = 0.0
    exchanging: float = 0.0


@dataclass(frozen=True)
class _Report:
    """What one ``train`` event tells."""

    time: float
    examples: float
    seconds: float
    data_s: float
    others_s: float

    @property
    def computing_s(self) -> float:
        return max(0.0, self.seconds - self.data_s - self.others_s)


@dataclass
class Exchange:
    """What is sent in a round: the last of its members to come waits for nothing else."""

    seconds: float = math.inf


@dataclass(frozen=True)
class _Round:
    time: float
    seconds: float
    exchange: Exchange
    staleness: float | None


@dataclass
class _Totals:
    """Of all reports."""

    examples: float = 0.0
    seconds: float = 0.0
    data_s: float = 0.0
    others_s: float = 0.0
    exchanging_s: float = 0.0

    def add(self, report: _Report) -> None:
        self.examples += report.examples
        self.seconds += report.seconds
        self.data_s += report.data_s
        self.others_s += report.others_s

    @property
    def shares(self) -> Shares:
        whole = max(self.seconds, self.data_s + self.others_s)
        if whole <= 0:
            return Shares()
        exchanging = min(self.others_s, self.exchanging_s)
        return Shares(
            1 - (self.data_s + self.others_s) / whole,
            self.data_s / whole,
            (self.others_s - exchanging) / whole,
            exchanging / whole,
        )


@dataclass
class LearnerState:
    """What is known of a learner. Times are by the run's clock.

    Attributes:
        number: which one it is.
        host: its machine; empty: not known.
        device: where it computes.
        presence: whether it takes part.
        joined: when it came, in this incarnation.
        gone: when it was lost or left.
        reason: why it was lost.
        lives: how often it has joined.
        examples: that it trained in all its lives.
        heard: when it last told anything.
        doing: what its own thread does if that takes long: computing, data or others.
        doing_since: since when.
        silent_since: since when it sends no heartbeats.
        removed: whether somebody has asked it to leave.
    """

    number: int
    host: str = ""
    device: str = ""
    presence: Presence = Presence.HERE
    joined: float = 0.0
    gone: float | None = None
    reason: str = ""
    lives: int = 0
    examples: float = 0.0
    heard: float = 0.0
    doing: str = ""
    doing_since: float = 0.0
    silent_since: float | None = None
    removed: bool = False
    _whole: _Totals = field(default_factory=lambda: _Totals())
    _counted: float = 0.0
    _reported: float | None = None
    _is_first: bool = False
    _reports: deque[_Report] = field(default_factory=deque)
    _rounds: deque[_Round] = field(default_factory=deque)

    @property
    def is_here(self) -> bool:
        """Whether it takes part."""
        return self.presence is Presence.HERE

    def join(self, time: float, event: Event) -> None:
        """Called when it joins, for the first time or again."""
        self.presence, self.gone, self.reason = Presence.HERE, None, ""
        self.host = str(event.get("host") or self.host)
        self.device = str(event.get("device") or self.device)
        self.lives += 1
        self.joined = self.heard = time
        self._begin()

    def go(self, time: float, presence: Presence, reason: str) -> None:
        """Called when it is lost, or leaves."""
        self.presence, self.gone, self.reason = presence, time, reason
        self._begin()

    def _begin(self) -> None:
        self._reports.clear()
        for old in self._rounds:
            self._settle(old)
        self._rounds.clear()
        self._reported, self._counted, self._is_first = None, 0.0, False
        self.doing, self.silent_since = "", None

    def train(self, time: float, event: Event) -> None:
        """Called for each of its ``train`` events."""
        self.heard, self.doing, self.silent_since = time, "", None
        examples, rate = number(event, "examples"), number(event, "rate") or 0.0
        since = self.joined if self._reported is None else self._reported
        seconds = max(0.0, time - since)
        if examples is None or examples < self._counted:  # it does not say, or counts anew
            step = rate * seconds
        else:
            step = examples - self._counted
        self._counted = self._counted if examples is None else examples
        self.examples += step
        data_s = number(event, "data_wait_s") or 0.0
        others_s = number(event, "round_wait_s") or 0.0
        # Events are stamped where they arrive: the report's own rate knows the time better.
        exact = step / rate if rate > 0 else seconds
        if self._reported is None:
            exact = seconds
        self._reports.append(_Report(time, step, max(exact, 1e-9), data_s, others_s))
        self._whole.add(self._reports[-1])
        if len(self._reports) == 2 and self._is_first:
            self._reports.popleft()
        self._is_first = self._reported is None
        self._reported = time
        while len(self._reports) > 1 and self._reports[0].time < time - WINDOW_S:
            self._reports.popleft()

    def round(self, time: float, exchange: Exchange, event: Event) -> None:
        """Called when it has taken part in a round."""
        self.heard = time
        seconds = number(event, "time_s") or 0.0
        exchange.seconds = min(exchange.seconds, seconds)
        self._rounds.append(_Round(time, seconds, exchange, number(event, "staleness")))
        while self._rounds[0].time < time - 2 * WINDOW_S:
            self._settle(self._rounds.popleft())

    def _settle(self, old: _Round) -> None:
        """Called when all members have reported the round."""
        self._whole.exchanging_s += old.exchange.seconds

    def unreported_s(self, now: float) -> float:
        """Seconds since its last report, as far as they are more than there should be."""
        since = self.joined if self._reported is None else self._reported
        return max(0.0, now - since - REPORT_S)

    def rate(self, now: float) -> float:
        """Examples a second, over the last seconds; of one that has gone, over all its time."""
        if not self.is_here:
            return self._whole.examples / self._whole.seconds if self._whole.seconds > 0 else 0.0
        seconds = sum(report.seconds for report in self._reports) + self.unreported_s(now)
        return sum(report.examples for report in self._reports) / seconds if seconds > 0 else 0.0

    def speed(self, now: float) -> float | None:
        """Examples a second of computing, over the last seconds; None: too little is known.

        Waiting for others, or for data, does not make a learner slow. Of one that has not reported
        for a while the time since counts, unless it is known to wait; of one that has gone all its
        time does.
        """
        if not self.is_here:
            busy = self._whole.seconds - self._whole.data_s - self._whole.others_s
            return self._whole.examples / busy if busy > 0 else None
        waits = self.doing in ("data", "others")
        unreported = 0.0 if waits else self.unreported_s(now)
        if self._is_first or not self._reports:
            has_trained = self._reported is not None or unreported > 2 * _HELD_BACK_S
            return 0.0 if has_trained and unreported > _HELD_BACK_S else None
        computing = sum(report.computing_s for report in self._reports) + unreported
        trained = sum(report.examples for report in self._reports)
        return trained / computing if computing > 0 else None

    def shares(self, now: float) -> Shares:
        """Where the time of the last seconds went; of one that has gone, all its time."""
        if not self.is_here:
            return self._whole.shares
        last = _Totals()
        for report in self._reports:
            last.add(report)
        unreported = self.unreported_s(now) if self.doing else 0.0
        last.seconds += unreported
        last.data_s += unreported if self.doing == "data" else 0.0
        last.others_s += unreported if self.doing == "others" else 0.0
        begun = self._reports[0].time - self._reports[0].seconds if self._reports else now
        last.exchanging_s = sum(r.exchange.seconds for r in self._rounds if r.time >= begun)
        return last.shares

    def exchanging(self, now: float) -> float:
        """The share of the last seconds in which a round was under way, waited for or not."""
        since = max(self.joined, now - WINDOW_S)
        spans = (min(r.seconds, r.time - since) for r in self._rounds if r.time > since)
        return min(1.0, sum(spans) / max(now - since, 1e-9))

    def staleness(self) -> float | None:
        """The mean over its last rounds; None: they have none."""
        known = [r.staleness for r in self._rounds if r.staleness is not None]
        return sum(known) / len(known) if known else None
