"""``unisono simulate --plan``: which strategy, pace and number of learners for given hosts.

Each strategy is timed (``unisono.simulation.timing``) with several numbers of learners, the fastest
hosts first, and at several paces, in a short run of some rounds. Its start and its end do not
count: what is told is the time of the minibatches in between, as many as some whole rounds have.
How many examples are needed is not simulated; that is ``unisono.training.learning_evidence``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from unisono.coordinator.pace import LEAST_ROUNDS, LEAST_SHARE
from unisono.runs.directory import write_atomically
from unisono.simulation.hosts import Hosts
from unisono.simulation.timeline import Timeline
from unisono.simulation.timing import OnCompute
from unisono.training.cluster_timing import ClusterTiming, Load, time_run
from unisono.training.compare_variants import BASELINE, ComparisonRun, Variant
from unisono.training.learning_evidence import PACES, SOLO_SHARE, examples_to_target
from unisono.training.plan_file import planned
from unisono.training.simulation_plan import HOSTS, Simulation
from unisono.training.timelines import write_timelines

STATIC = "averaging:sharding=static"
"""Shown beside what is recommended: there everybody waits for each round."""
PLAN_STRATEGIES = f"averaging,{STATIC},gossip-random,server,delay-by-one,allreduce"

PACED = ("averaging", "gossip-random", "gossip-fixed")
"""Strategies whose option ``every`` is chosen; the others keep the pace of their defaults."""
ROUNDS = 6
"""Of a run that is timed."""
COUNTED = (2, 5)
"""The rounds, from the end of the first of them on, that count."""
LEAST_ROUND = 8
"""Minibatches a learner that count as a round where rounds are more frequent."""
CARRIED = 1.5
"""Rounds that are so many times rarer than asked for are more than the links can carry."""
GAIN = 0.03
"""Times that differ by less count as equal: then fewer learners, and the default strategy."""
SLOW = 0.5
"""Hosts slower than this, compared with the fastest, may be better left out."""


@dataclass(frozen=True)
class Option:
    """One way to train, and what is expected of it.

    Attributes:
        variant: the strategy, without its pace.
        hosts: with the learners that take part.
        pace: minibatches a learner between two rounds; None: the strategy's default.
        every: the same in examples.
        epoch_s: simulated seconds of one epoch.
        computing: share of the learners' time, simulated.
        carried: whether the links can carry rounds at that pace; otherwise they are rarer.
        share: examples to target over those of solo, by ``learning_evidence``; None: not known to
            reach it.
        epochs: of the training.
    """

    variant: Variant
    hosts: Hosts
    pace: int | None
    every: int | None
    epoch_s: float
    computing: float
    carried: bool
    share: float | None
    epochs: int

    @property
    def learners(self) -> int:
        """How many."""
        return self.hosts.learners

    @property
    def target_s(self) -> float:
        """Seconds until solo's final log-prob less 0.02; infinite where it is not reached."""
        if self.share is None:
            return float("inf")
        return SOLO_SHARE * self.epochs * self.share * self.epoch_s


@dataclass(frozen=True)
class Recommendation:
    """What came out.

    Attributes:
        options: every strategy with every number of learners, at its best pace; solo first.
        best: the one to take.
        runner_up: the best one of another strategy, or of another number of learners.
        compact: the best one with models sent in 8 bits; None where it is so already.
        most_learners: that the data allow.
        hours: that were asked for.
    """

    options: list[Option]
    best: Option
    runner_up: Option
    compact: Option | None
    most_learners: int
    hours: float | None

    @property
    def solo(self) -> Option:
        """One learner on the fastest host."""
        return self.options[0]

    @property
    def in_time(self) -> bool:
        """Whether the best one reaches the target in the hours that were asked for."""
        return self.hours is None or self.best.target_s <= 3600 * self.hours


@dataclass
class Planner:
    """Times the options, and chooses."""

    simulation: Simulation
    load: Load
    hours: float | None = None

    def run(self) -> Recommendation:
        """Everything; hosts.toml with all costs is written to the directory.

        Raises:
            UserError: bad input, or another simulation's directory.
        """
        simulation = self.simulation
        variants = simulation.plan.variants
        jobs = [simulation.job(variant, simulation.plan.seeds[0]) for variant in variants]
        hosts = simulation.costed(jobs)
        settings = {**simulation.settings(hosts), "plan": [self.load.minibatches, self.hours]}
        with planned(simulation.out, settings, "simulate", "simulation"):
            write_atomically(simulation.out / HOSTS, hosts.dump().encode())
            found = self._choose(hosts)
            self._draw(found)
            return found

    def _choose(self, hosts: Hosts) -> Recommendation:
        solo = self._option(Variant(BASELINE), hosts.fastest(), None)
        options = [solo]
        for count in self._counts(hosts):
            chosen = hosts.without_faults().fastest_learners(count)
            for variant in self.simulation.plan.variants[1:]:
                options.append(min(self._paces(variant, chosen), key=_time))
        best = best_option(options, self.hours)
        others = [o for o in options if o.variant != best.variant]
        runner_up = best_option(others or [o for o in options if o is not best] or options, None)
        return Recommendation(
            options, best, runner_up, self._compact(best), self._most_learners(), self.hours
        )

    def _most_learners(self) -> int:
        """With ``LEAST_ROUNDS`` rounds of ``LEAST_SHARE`` minibatches in the whole run."""
        total = self.load.minibatches * self.simulation.plan.base.epochs
        return max(1, total // (LEAST_ROUNDS * LEAST_SHARE))

    def _counts(self, hosts: Hosts) -> list[int]:
        """Powers of two, all that the data allow, and all but the slow hosts."""
        most = min(hosts.learners, self._most_learners())
        fastest = min(host.slowness for host in hosts.host)
        fast = sum(h.learners for h in hosts.host if fastest / h.slowness > SLOW)
        powers = [2**n for n in range(1, most.bit_length())]
        return sorted({c for c in (*powers, fast, most) if 2 <= c <= most})

    def _paces(self, variant: Variant, hosts: Hosts) -> Iterator[Option]:
        """From the most frequent one that the links can carry, while rarer rounds are worth it."""
        named = any(option.startswith("every=") for option in variant.options)
        if variant.strategy not in PACED or named:
            yield self._option(variant, hosts, None)
            return
        total = self.load.minibatches * self.simulation.plan.base.epochs
        before = float("inf")
        paces = [p for p in PACES if p * LEAST_ROUNDS * hosts.learners <= total] or PACES[:1]
        for pace in paces:
            option = self._option(variant, hosts, pace)
            if option.carried or pace == paces[-1]:
                yield option
                if _time(option) > (1 - GAIN) * before or option.computing > 1 - GAIN:
                    return
                before = _time(option)

    def _compact(self, best: Option) -> Option | None:
        if best.variant.strategy not in PACED or "precision" in best.variant.name:
            return None
        variant = Variant(f"{best.variant.name}:precision=int8")
        return self._option(variant, best.hosts, best.pace)

    def _option(self, variant: Variant, hosts: Hosts, pace: int | None) -> Option:
        plan = self.simulation.plan
        every = None if pace is None else pace * plan.base.minibatch
        job = self._job(variant, hosts.learners, every)
        seconds, computing, between = self._measure(job, hosts, pace)
        return Option(
            variant,
            hosts,
            pace,
            every,
            seconds * self.load.minibatches,
            computing,
            pace is None or between < CARRIED * pace,
            self._share(variant, hosts.learners, None if pace is None else between),
            plan.base.epochs,
        )

    def _job(self, variant: Variant, learners: int, every: int | None) -> ComparisonRun:
        plan = self.simulation.plan
        base = plan.base.model_copy(update={"learners": str(learners)})
        named = variant if every is None else Variant(f"{variant.name}:every={every}")
        return replace(self.simulation, plan=replace(plan, base=base)).job(named, plan.seeds[0])

    def _draw(self, found: Recommendation) -> None:
        """timeline.svg: the best one, the runner-up, and static averaging beside them."""
        shown = [("recommended", found.best), ("runner-up", found.runner_up)]
        beside = [o for o in found.options if o.learners == found.best.learners]
        shown += [("", o) for o in beside if o.variant.name == STATIC]
        drawn: dict[int, tuple[str, ClusterTiming, Timeline]] = {}
        for mark, option in shown:
            if option.learners > 1 and id(option) not in drawn:
                timeline = Timeline()
                job = self._job(option.variant, option.learners, option.every)
                took = self._time(job, option.hosts, option.pace, timeline=timeline)
                title = f"{job.variant.name}, {mark}" if mark else job.variant.name
                drawn[id(option)] = (title, took, timeline)
        if drawn:
            write_timelines(self.simulation.out, list(drawn.values()))

    def _share(self, variant: Variant, learners: int, between: float | None) -> float | None:
        """Not known where rounds are so rare that there are hardly any in the whole run."""
        total = self.load.minibatches * self.simulation.plan.base.epochs
        if between is not None and between * learners * LEAST_ROUNDS > CARRIED * total:
            return None
        return examples_to_target(variant, learners, between)

    def _measure(
        self, job: ComparisonRun, hosts: Hosts, pace: int | None
    ) -> tuple[float, float, float]:
        """Seconds of a minibatch, share of the time computing, and minibatches between rounds."""
        spans: list[tuple[float, float]] = []
        took = self._time(job, hosts, pace, lambda _, begin, end: spans.append((begin, end)))
        ends = sorted(end for _, end in spans)
        round_ = _round(hosts, pace)
        first, last = (ends[round_ * number - 1] for number in COUNTED)
        computed = sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in spans)
        seconds = (last - first) / (round_ * (COUNTED[1] - COUNTED[0]))
        length = round_ / hosts.learners
        between = max(length, ROUNDS * length / max(took.timing.rounds, 1.0))
        return seconds, computed / (hosts.learners * (last - first)), between

    def _time(
        self,
        job: ComparisonRun,
        hosts: Hosts,
        pace: int | None,
        on_compute: OnCompute | None = None,
        timeline: Timeline | None = None,
    ) -> ClusterTiming:
        load = replace(self.load, minibatches=ROUNDS * _round(hosts, pace))
        slowness = {number: host.slowness for number, host in enumerate(hosts.places)}
        return time_run(job, hosts, slowness, load, on_compute, timeline)


def _round(hosts: Hosts, pace: int | None) -> int:
    """Minibatches of all learners that count as a round."""
    return hosts.learners * max(pace or 1, LEAST_ROUND)


def best_option(options: list[Option], hours: float | None) -> Option:
    """The soonest at the target; with ``hours``, the fewest learners that are there in time.

    Times within ``GAIN`` of each other are equal: then fewer learners, then the first.
    """
    in_time = [o for o in options if hours is not None and o.target_s <= 3600 * hours]
    if in_time:
        fewest = min(o.learners for o in in_time)
        options = [o for o in in_time if o.learners == fewest]
    soonest = min(map(_time, options))
    return min((o for o in options if _time(o) <= soonest * (1 + GAIN)), key=lambda o: o.learners)


def _time(option: Option) -> float:
    """Options that reach the target go before those that are not known to."""
    return option.target_s if option.share is not None else 1e9 * option.epoch_s
