"""A recommendation in words, with its table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from unisono.coordinator.pace import LEAST_ROUNDS, LEAST_SHARE
from unisono.report.axes import duration
from unisono.report.comparison import align
from unisono.runs.directory import write_atomically
from unisono.simulation.hosts import Hosts
from unisono.text import counted
from unisono.training.cluster_timing import Load
from unisono.training.learning_evidence import MOST_MEASURED
from unisono.training.recommend import GAIN, STATIC, Option, Planner, Recommendation
from unisono.training.simulation_plan import Simulation

PLAN_TEXT = "plan.txt"
_NAMED = 6
"""Hosts that are named one by one."""


def recommend(simulation: Simulation, load: Load, hours: float | None) -> list[str]:
    """Recommends; the text is in the directory's plan.txt, too.

    Raises:
        UserError: bad input, or another simulation's directory.
    """
    found = Planner(simulation, load, hours).run()
    assert simulation.hosts is not None
    lines = RecommendationText(
        found, simulation.hosts, load, simulation.plan.base.minibatch
    ).lines()
    write_atomically(simulation.out / PLAN_TEXT, ("\n".join(lines) + "\n").encode())
    return lines


@dataclass(frozen=True)
class RecommendationText:
    """Writes one recommendation."""

    found: Recommendation
    hosts: Hosts
    """All that there are."""
    load: Load
    minibatch: int
    """Examples."""

    def lines(self) -> list[str]:
        """All of it."""
        best, runner_up = self.found.best, self.found.runner_up
        lines = [f"Recommended: {_describe(best)}"]
        lines += [f"  {_command(best)}"]
        lines += [f"Expected: {self._expected()}"]
        lines += [f"Why: {reason}" for reason in self._reasons()]
        if runner_up is not best:
            lines.append(f"Runner-up: {_describe(runner_up)}: {self._later(runner_up)}")
        return [*lines, "", *self._table(), "", *self._basis()]

    def _expected(self) -> str:
        best, solo, hours = self.found.best, self.found.solo, self.found.hours
        text = f"the target in {_span(best.target_s)}"
        if best.learners > 1:
            times = f"{solo.target_s / best.target_s:.1f} times sooner than one learner on"
            text += f", {times} {solo.hosts.host[0].name} ({_span(solo.target_s)})"
        text += f"; {counted(best.epochs, 'epoch')} in {_span(best.epochs * best.epoch_s)}"
        if hours is None:
            return text
        if not self.found.in_time:
            return f"{text}. Nothing here reaches the target in {hours:g} h: this is the soonest"
        return (
            f"{text}. It is the smallest number of learners tried that needs less than {hours:g} h"
        )

    def _reasons(self) -> list[str]:
        return [reason for reason in (self._strategy(), self._number(), self._compact()) if reason]

    def _strategy(self) -> str:
        best = self.found.best
        if best.learners == 1:
            return "no strategy with more learners is sooner: exchanging models costs too much here"
        same = [o for o in self.found.options if o.learners == best.learners]
        static = next((o for o in same if o.variant.name == STATIC), None)
        if static is None or static is best:
            return f"learners compute {best.computing:.0%} of the time"
        slow = max(best.hosts.host, key=lambda host: host.slowness)
        fast = min(best.hosts.host, key=lambda host: host.slowness)
        unequal = slow.slowness > 1.05 * fast.slowness
        whom = f"; the slowest is {slow.name}" if unequal else ""
        return (
            f"learners compute {best.computing:.0%} of the time; with static averaging, where "
            f"everybody waits for each round, {static.computing:.0%}, and the target takes "
            f"{_span(static.target_s)}{whom}"
        )

    def _number(self) -> str:
        best, parts = self.found.best, []
        same = [o for o in self.found.options if o.variant == best.variant and o is not best]
        fewer = [o for o in same if o.learners < best.learners]
        more = [o for o in same if o.learners > best.learners]
        for option in [*fewer[-1:], *more[:1]]:
            parts.append(f"with {option.learners} learners it is {self._later(option)}")
        used = {host.name for host in best.hosts.host}
        left = [host.name for host in self.hosts.host if host.name not in used]
        if left and best.learners > 1:
            parts.append(f"left out: {_names(left)}")
        if self.found.most_learners < self.hosts.learners:
            parts.append(
                f"the data are enough for {self.found.most_learners} learners ({LEAST_ROUNDS} "
                f"rounds of {LEAST_SHARE} minibatches)"
            )
        return "; ".join(parts)

    def _compact(self) -> str:
        compact, best = self.found.compact, self.found.best
        if compact is None or compact.target_s > (1 - GAIN) * best.target_s:
            return ""
        return (
            f"add --set strategy.precision=int8 and it is {_span(compact.target_s)}: a quarter "
            "of the bytes on the links (not in the table)"
        )

    def _later(self, option: Option) -> str:
        best = self.found.best.target_s
        if not math.isfinite(option.target_s):
            return "not known to reach the target"
        change = option.target_s / best - 1
        if abs(change) < 0.005:
            return f"as soon ({_span(option.target_s)})"
        word = "later" if change > 0 else "sooner"
        return f"{abs(change):.0%} {word} ({_span(option.target_s)})"

    def _table(self) -> list[str]:
        solo, best, runner_up = self.found.solo, self.found.best, self.found.runner_up
        heads = ["strategy", "learners", "every", "examples/s", "an epoch", "computing"]
        cells = [[*heads, "examples needed", "to target", "speed-up", ""]]
        examples = self.load.minibatches * self.minibatch
        for option in self.found.options:
            reached = option.share is not None
            mark = {id(best): "recommended", id(runner_up): "runner-up"}.get(id(option), "")
            cells.append(
                [
                    option.variant.name,
                    f"{option.learners}",
                    "" if option.every is None else f"{option.every:,}",
                    f"{examples / option.epoch_s:,.0f}",
                    _span(option.epoch_s),
                    f"{option.computing:.0%}",
                    f"{option.share:.2f}" if reached else "unknown",
                    _span(option.target_s) if reached else "",
                    f"{solo.target_s / option.target_s:.1f}" if reached else "",
                    mark,
                ]
            )
        return align(cells)

    def _basis(self) -> list[str]:
        training = f"{self.load.minibatches:,} minibatches of {self.minibatch} examples an epoch"
        size = f"{training}, a model of {self.load.parameters:,} parameters"
        lines = [
            "Simulated: examples/s, time of an epoch and computing (share of the learners' time), "
            f"for {size}: the strategies' own code on the hosts, links and costs of hosts.toml, "
            "without start-up.",
            "Assumed: examples needed, compared with solo, until the held-out log-prob is solo's "
            "final one less 0.02 (the target). Measured for 4, 8 and 16 learners on 8 h of speech, "
            "and for the pace of 16 to 64 minibatches (docs/evidence.md); your data and model may "
            "differ: `unisono simulate PREP --strategies ...` trains with real gradients. "
            "unknown: strategies that ended below the target there, and rounds so slow that a run "
            f"has far fewer than {LEAST_ROUNDS}.",
        ]
        if self.hosts.has_faults:
            lines.append(
                "Deaths, joins and partitions of the hosts file are left out here: `unisono "
                "simulate --timing --strategies ...` has them."
            )
        if any(option.learners > MOST_MEASURED for option in self.found.options):
            lines.append(
                f"Beyond {MOST_MEASURED} learners nothing was measured: the examples needed are "
                "extrapolated."
            )
        return lines


def _describe(option: Option) -> str:
    hosts = [h.name if h.learners == 1 else f"{h.name} ({h.learners})" for h in option.hosts.host]
    where = f"{counted(option.learners, 'learner')} on {_names(hosts)}"
    text = f"{option.variant.name}, {where}"
    if option.every is not None:
        text += f", every {option.every:,} examples a learner ({option.pace} minibatches)"
    return text


def _names(names: list[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more"


def _command(option: Option) -> str:
    sets = [f"--set strategy.{text}" for text in option.variant.options]
    if option.every is not None:
        sets.append(f"--set strategy.every={option.every}")
    words = ["unisono train PREP --out RUN", f"--learners {option.learners}"]
    return " ".join([*words, f"--strategy {option.variant.strategy}", *sets])


def _span(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 2 * 86400 else duration(seconds)
