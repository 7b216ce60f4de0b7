"""A run for reports: its files, and the curves in its events."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unisono.config import Config
from unisono.report.word_errors import Decoded, read_decoded
from unisono.runs.directory import RunDirectory
from unisono.runs.metrics import Event, began_at, goes_on, is_number
from unisono.runs.summary import Summary

Point = tuple[float, float]
Curve = list[list[Point]]
"""Pieces of a line: where a run was resumed or a learner was away, it is broken; some are empty."""

_OF_ALL = frozenset({"event", "time", "learner", "global_examples"})
_KNOWN = frozenset(
    {"start", "strategy", "train", "validation", "round", "exchanges", "combined", "dropped"}
    | {"restored", "lost", "diverged", "failed", "joined", "leaves", "left", "status"}
    | {"simulated", "consensus", "pace", "requested", "checkpoint"}
)
"""The names of events that are ours (docs/reference/events.md)."""

Abscissa = Callable[[Event], float | None]


@dataclass(frozen=True)
class Mark:
    """A learner that was lost or joined."""

    time: float
    learner: str
    lost: bool
    reason: str


@dataclass
class Track:
    """One learner through the run.

    Attributes:
        name: what it is called.
        rate: its examples a second against time.
        examples: examples that it trained.
        seconds: how long it was there.
        data_wait_s: how long of that it waited for data.
        round_wait_s: how long of that it waited for others.
    """

    name: str
    rate: Curve = field(default_factory=list)
    examples: float = 0.0
    seconds: float = 0.0
    data_wait_s: float = 0.0
    round_wait_s: float = 0.0

    @property
    def speed(self) -> float:
        """Examples a second of computing: waiting for others does not make a learner slow."""
        computing = self.seconds - self.data_wait_s - self.round_wait_s
        return self.examples / computing if computing > 0 else 0.0


@dataclass(frozen=True)
class History:
    """One run: configuration, summary and events. Times continue over a resumption."""

    name: str
    config: Config
    summary: Summary | None
    events: list[Event]
    decoded: list[Decoded] = field(default_factory=list)
    data: str = ""
    """What tells the prepared data from others."""
    own_loop: bool = False
    """Whether it is of a script with a ``Learner``: nothing of its configuration is known."""

    @classmethod
    def read(cls, path: Path, name: str) -> History:
        """Reads a run, finished or not."""
        run = RunDirectory(path)
        if not run.metrics.is_file() or run.config.is_file():
            run = RunDirectory.open(path)
        events = _data_seen(_when_taken(_one_clock(run.read_metrics())))
        decoded = read_decoded(path)
        if not run.config.is_file():
            return cls(name, _config_of(events), None, events, data=name, own_loop=True)
        config = run.read_config()
        return cls(name, config, run.read_summary(), events, decoded, _data_of(run, config))

    @property
    def start_up_s(self) -> float:
        """Seconds until the last of the first learners had joined, or the others had begun."""
        return began_at(self.events, self.config.first_learners)

    def without_start_up(self) -> History:
        """Returns the run with its clock at 0 when the last of its first learners had joined.

        As in the summary's ``wall_s``: processes take seconds to start, and several take longer
        than one. Of a run in one piece; what happened before is at 0, and that the first learners
        joined is no news.
        """
        begun = self.start_up_s
        first = self.named("joined")[: self.config.first_learners]
        known = {id(event) for event in first}
        later = [event for event in self.events if id(event) not in known]
        shifted = [{**event, "time": max(0.0, event["time"] - begun)} for event in later]
        return replace(self, events=shifted)

    @property
    def joined_later(self) -> int:
        """How many learners joined after the start, and after that of each resumption."""
        parts = Counter(part for part, _ in self._parts("joined"))
        return sum(max(0, count - self.config.first_learners) for count in parts.values())

    @property
    def ended(self) -> str:
        """How a run without a summary ended, by its events."""
        last = list(itertools.dropwhile(lambda event: event["event"] == "start", self.events[::-1]))
        part = list(itertools.takewhile(lambda event: event["event"] != "start", last))
        names = Counter(event["event"] for event in part)
        if names["failed"]:
            return next(str(e.get("reason")) for e in part if e["event"] == "failed")
        if self.own_loop and names["leaves"] and names["leaves"] + names["lost"] == names["joined"]:
            return "finished"
        return "not ended"

    @property
    def lines(self) -> list[str]:
        """How the strategy describes itself."""
        told = [event.get("lines") for event in self.named("start", "strategy")]
        return [str(line) for line in next((lines for lines in told if lines), [])]

    def own_numbers(self) -> list[tuple[str, str]]:
        """The numbers in events of names that only the user knows, as (event, key)."""
        found: dict[tuple[str, str], None] = {}
        for event in self.events:
            if event["event"] not in _KNOWN:
                keys = [key for key in event if key not in _OF_ALL]
                found |= {(event["event"], k): None for k in keys if number(event, k) is not None}
        return list(found)

    def named(self, *names: str) -> list[Event]:
        """Returns the events of these names, in order."""
        return [event for event in self.events if event["event"] in names]

    def losses(self, x: Abscissa) -> list[Curve]:
        return self.numbers("train", "loss", x)

    def numbers(self, name: str, key: str, x: Abscissa) -> list[Curve]:
        """Returns a number of the events of a name, for each learner."""
        curves: dict[str, Curve] = {}
        for part, event in self._parts(name):
            curve = curves.setdefault(str(event["learner"]), [])
            _add(curve, part, x(event), number(event, key))
        return list(curves.values())

    def checks(self, key: str, x: Abscissa) -> Curve:
        """Returns a number of the validation events."""
        return self.series("validation", key, x)

    def series(self, name: str, key: str, x: Abscissa) -> Curve:
        """Returns a number of the events of a name, whichever learner told of them."""
        curve: Curve = []
        for part, event in self._parts(name):
            _add(curve, part, x(event), number(event, key))
        return curve

    def _parts(self, name: str) -> Iterator[tuple[int, Event]]:
        """Yields the events of a name, each with the number of starts before it."""
        part = 0
        for event in self.events:
            if event["event"] == "start":
                part += 1
            elif event["event"] == name:
                yield part, event

    def marks(self) -> list[Mark]:
        """Returns who was lost and who joined, in order."""
        return [
            Mark(
                event["time"],
                str(event["learner"]),
                event["event"] == "lost",
                str(event.get("reason") or ""),
            )
            for event in self.named("lost", "joined")
        ]

    def tracks(self) -> list[Track]:
        tracks: dict[str, Track] = {}
        since: dict[str, float] = {}
        trained: dict[str, float] = {}
        began = 0.0
        for event in self.named("start", "joined", "lost", "train"):
            name, time = str(event["learner"]), event["time"]
            if event["event"] == "start":
                began = time
                since.clear()
                trained.clear()
                continue
            if event["event"] == "train":
                track = tracks.setdefault(name, Track(name))
                rate, examples = number(event, "rate"), number(event, "examples") or 0.0
                _add(track.rate, len(track.rate) - (name in trained), time, rate)
                seconds = max(0.0, time - since.get(name, began))
                # After a break the count may go on, or begin anew: the rate knows better.
                step = examples - trained[name] if name in trained else (rate or 0.0) * seconds
                track.examples += max(0.0, step)
                track.seconds += seconds
                track.data_wait_s += number(event, "data_wait_s") or 0.0
                track.round_wait_s += number(event, "round_wait_s") or 0.0
                trained[name] = examples
            else:
                trained.pop(name, None)
            since[name] = time
        return sorted(tracks.values(), key=lambda track: _natural(track.name))


def _config_of(events: list[Event]) -> Config:
    """Of a loop of one's own: what the events tell, the rest is not known."""
    lines = [line for e in events if e["event"] == "strategy" for line in e.get("lines") or []]
    known = {str(line).split(maxsplit=1)[0]: str(line).split()[1:2] for line in lines if line}
    before = itertools.takewhile(lambda event: event["event"] != "train", events)
    joined = sum(event["event"] == "joined" for event in before)
    learners = (known.get("learners") or [str(max(1, joined))])[0]
    name = (known.get("strategy") or [""])[0]
    return Config(learners=learners, strategy={"name": name} if name else {})


def _data_of(run: RunDirectory, config: Config) -> str:
    """The fingerprint of the prepared data; of a run without a model yet, where they lie."""
    try:
        return str(json.loads(run.model_description.read_text(encoding="utf-8"))["prep"])
    except (OSError, ValueError, LookupError, TypeError):
        return config.prep


def number(event: Event, key: str) -> float | None:
    """Returns a number of an event, or None where there is none."""
    value = event.get(key)
    return value if is_number(value) else None


def by_time(event: Event) -> float | None:
    """The abscissa of curves against wall-clock."""
    return number(event, "time")


def by_examples(event: Event) -> float | None:
    """The abscissa of curves against the data seen by all learners."""
    return number(event, "global_examples")


def thin(points: Iterable[Point], most: int) -> list[Point]:
    """Returns at most so many points: means over equal stretches of the abscissa."""
    ordered = sorted(points)
    if len(ordered) <= most:
        return ordered
    low, high = ordered[0][0], ordered[-1][0]
    bins: dict[int, list[Point]] = {}
    for point in ordered:
        share = (point[0] - low) / (high - low) if high > low else 0.0
        bins.setdefault(min(most - 1, int(share * most)), []).append(point)
    return [_mean(bin_) for bin_ in bins.values()]


def mean_curve(curves: Sequence[Curve], most: int = 120) -> Curve:
    """Returns one curve through several learners': the mean over short stretches.

    The k-th pieces of all curves belong together: they lie between the same two starts. There
    are no more stretches than a learner has points, or the mean would jump between learners.
    """
    pieces: Curve = []
    for k in range(max((len(curve) for curve in curves), default=0)):
        together = [curve[k] for curve in curves if len(curve) > k and curve[k]]
        points = [point for piece in together for point in piece]
        pieces.append(thin(points, min(most, max(1, len(points) // max(1, len(together))))))
    return pieces


def _mean(points: Sequence[Point]) -> Point:
    count = len(points)
    return sum(x for x, _ in points) / count, sum(y for _, y in points) / count


def _add(curve: Curve, part: int, x: float | None, y: float | None) -> None:
    while len(curve) <= part:
        curve.append([])
    if x is not None and y is not None:
        curve[part].append((x, y))


def _natural(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (2**63, name)


def _one_clock(events: list[Event]) -> list[Event]:
    """Shifts the times of a resumed run whose clock began at 0 again."""
    shifted, last, offset = [], 0.0, 0.0
    for event in events:
        if goes_on(event, last - offset):
            offset = last - event["time"]
        time = event["time"] + offset
        last = max(last, time)
        shifted.append({**event, "time": time})
    return shifted


def _when_taken(events: list[Event]) -> list[Event]:
    """Puts validations, which are told when they are scored, where their model was taken."""
    return sorted(
        ({**e, "time": e["time"] - (number(e, "age_s") or 0.0)} for e in events),
        key=lambda e: e["time"],
    )


def _data_seen(events: list[Event]) -> list[Event]:
    """Gives events that do not say how much data was seen what was last said before them."""
    filled, seen = [], None
    for event in events:
        seen = event.get("global_examples", seen)
        filled.append(event if seen is None else {**event, "global_examples": seen})
    return filled
