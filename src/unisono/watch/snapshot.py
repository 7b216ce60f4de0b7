"""What the live page shows, as plain data."""

from __future__ import annotations

import json
from typing import Any

from unisono.watch.controls import Controls
from unisono.watch.feed import Feed, Stage
from unisono.watch.learner_state import LearnerState
from unisono.watch.slowness import SlowLearner, compared

_MOST_LINKS = 8


def snapshot(feed: Feed) -> dict[str, Any]:
    """Returns the state of a run now: short keys, a row a learner."""
    live, time, stage = feed.live, feed.time, feed.stage
    is_live = stage in (Stage.RUNNING, Stage.QUIET)
    shown = live.here if is_live else list(live.learners.values())
    slow = live.slow.find(live.here, time) if is_live else []
    by_number = {each.learner: each for each in slow}
    speeds = {
        learner.number: speed for learner in shown if (speed := learner.speed(time)) is not None
    }
    ordered = sorted(live.learners.values(), key=lambda each: (not each.is_here, each.number))
    total = live.examples
    actions, why_none = Controls(feed).offered()
    return {
        "name": feed.run.path.resolve().name,
        "stage": stage.value,
        "reason": live.failure,
        "stopped": live.stop_requested and live.progress < 1,
        "simulated": live.simulated,
        "lines": live.lines,
        "time": time,
        "quiet_s": feed.quiet_s,
        "progress": live.progress,
        "examples": total,
        "rate": sum(learner.rate(time) for learner in live.here) if is_live else live.mean_rate,
        "rounds": live.shared,
        "lost": live.lost,
        "here": len(live.here),
        "logprob": live.heldout[-1][1] if live.heldout else None,
        "accuracy": live.accuracy,
        "pool": live.pool,
        "slow": [_slow(each, live.learners[each.learner], time) for each in slow],
        "slowest": min(speeds, key=speeds.__getitem__) if len(speeds) > 1 else None,
        "links": [
            {"from": link.sender, "to": link.receiver, "rate": link.rate}
            for link in live.links.slowest(time)[:_MOST_LINKS]
        ],
        "learners": [_row(each, time, total, speeds, by_number) for each in ordered],
        "malformed": feed.malformed,
        "behind": feed.is_behind,
        "actions": actions,
        "why_none": why_none,
    }


def _slow(slow: SlowLearner, learner: LearnerState, time: float) -> dict[str, Any]:
    silent = learner.silent_since
    return {
        "learner": slow.learner,
        "host": learner.host,
        "ratio": slow.ratio,
        "speed": slow.speed,
        "for_s": time - slow.since,
        "silent_s": None if silent is None else time - silent,
    }


def _row(
    learner: LearnerState,
    time: float,
    total: float,
    speeds: dict[int, float],
    slow: dict[int, SlowLearner],
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "n": learner.number,
        "host": learner.host,
        "device": learner.device,
        "state": learner.presence.value,
        "share": learner.examples / total if total > 0 else 0.0,
        "examples": learner.examples,
        "lives": learner.lives,
    }
    shares = learner.shares(time)
    known = learner.number in speeds
    row |= {
        "rate": learner.rate(time),
        "ratio": compared(learner.number, speeds) if known else None,
        "computing": shares.computing,
        "data": shares.data,
        "others": shares.others,
        "exchanging": shares.exchanging,
    }
    if not learner.is_here:
        return row | {"gone": learner.gone, "reason": learner.reason, "removed": learner.removed}
    heard = learner.heard if learner.silent_since is None else learner.silent_since
    return row | {
        "beside": max(0.0, learner.exchanging(time) - shares.others - shares.exchanging),
        "staleness": learner.staleness(),
        "seen_s": max(0.0, time - heard),
        "silent": learner.silent_since is not None,
        "slow": learner.number in slow,
        "removed": learner.removed,
        "doing": learner.doing,
        "doing_s": time - learner.doing_since if learner.doing else 0.0,
    }


class Subscription:
    """What one open page has not been sent yet, as server-sent events."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._live = feed.live
        self._line = 0
        self._round = 0
        self._sent: tuple[int, Stage] | None = None

    def next(self) -> bytes:
        """The next event: all of it at first, then what has changed."""
        feed = self._feed
        feed.refresh()
        live = feed.live
        message: dict[str, Any] = {"state": snapshot(feed)}
        if live is not self._live or self._sent is None:
            message["reset"] = True
            self._live, self._line, self._round, self._sent = live, 0, 0, None
        lines = [(number, line) for number, line in live.log if number >= self._line]
        message["log"] = [[line.time, line.text, line.bad] for _, line in lines]
        self._line = lines[-1][0] + 1 if lines else self._line
        rounds = [round_ for round_ in live.rounds if round_[0] >= self._round]
        message["rounds"] = [[n, _ms(begin), _ms(end)] for _, n, begin, end in rounds]
        self._round = rounds[-1][0] + 1 if rounds else self._round
        changed = (feed.version, feed.stage)
        if changed != self._sent:
            message["heldout"] = live.heldout
            message["train"] = [[_ms(time), -loss] for time, loss in live.loss.points()]
            message["lives"] = [[x.learner, x.begun, x.ended, x.lost] for x in live.lives]
            self._sent = changed
        return b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def _ms(seconds: float) -> float:
    return round(seconds, 3)
