"""What ``unisono simulate`` was asked for: strategies, hosts, costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unisono.errors import UserError
from unisono.simulation.hosts import Hosts, one_host, read_hosts
from unisono.training.calibrate import calibrate
from unisono.training.compare_variants import (
    BASELINE,
    ComparisonRun,
    Plan,
    Variant,
    plan_comparison,
)
from unisono.training.costs import message_cost, minibatch_seconds
from unisono.training.plan_file import check_place, settings_of

HOSTS = "hosts.toml"
TABLE = "table.txt"


def read_slow(texts: Sequence[str], learners: int) -> dict[int, float]:
    """Reads ``NUMBER=FACTOR`` for each learner that is slower than the others.

    Raises:
        UserError: it cannot be read, or there is no such learner.
    """
    slow = {}
    for text in texts:
        number, _, factor = text.partition("=")
        try:
            slow[int(number)] = float(factor)
            if not 0 <= int(number) < learners or not 0 < float(factor) <= 1e6:
                raise ValueError
        except ValueError:
            raise UserError(
                f"--slow {text!r} is not LEARNER=FACTOR, with a learner from 0 to {learners - 1} "
                "and a factor above 0, at most 1000000; for example 0=5"
            ) from None
    return slow


def sizes_of(hosts: Hosts | None) -> list[str]:
    """``--set`` texts for what a hosts file says of the training."""
    training = None if hosts is None else hosts.training
    size = None if training is None else training.minibatch
    return [] if size is None else [f"minibatch={size}"]


def plan_simulation(
    prep: Path | None,
    strategies: str,
    learners: int,
    seeds: int,
    epochs: int | None,
    sets: Sequence[str],
) -> Plan:
    """Reads what a user asks for; a learner has one thread of a CPU.

    Raises:
        UserError: something of it cannot be read, or cannot be simulated.
    """
    plan = plan_comparison(
        prep=prep,
        strategies=strategies,
        learners=learners,
        rates="1",
        seeds=seeds,
        epochs=epochs,
        sets=["device=cpu", *sets, "threads=1"],
    )
    if plan.base.recipe.enabled:
        raise UserError("--set recipe.enabled=true: Kaldi's recipe cannot be simulated yet")
    if plan.base.processes_per_learner > 1:
        raise UserError(
            "processes_per_learner: learners with several processes cannot be simulated"
        )
    if plan.base.servers:
        raise UserError("servers: runs with servers cannot be simulated")
    return plan


@dataclass(kw_only=True)
class Simulation:
    """Runs of strategies on hosts. Solo runs on the fastest one, and is never slowed down."""

    plan: Plan
    out: Path
    hosts: Hosts | None
    """As a user gave them; None: one host."""
    slow: Mapping[int, float]
    """How many times longer some learners compute, besides their host's speed."""
    say: Callable[[str], None]
    runs: Sequence[Path] = ()
    """Real ones, that tell costs."""

    def jobs(self) -> list[ComparisonRun]:
        """All runs, seed by seed."""
        variants = self.plan.variants
        return [self.job(variant, seed) for seed in self.plan.seeds for variant in variants]

    def job(self, variant: Variant, seed: int) -> ComparisonRun:
        """One run."""
        job = self.plan.job(self.out, variant, 1.0, seed)
        return replace(job, path=self.out / f"{variant.folder}-{seed}")

    def place(self, job: ComparisonRun, hosts: Hosts) -> tuple[Hosts, Mapping[int, float]]:
        """The hosts of a run, and how slow its learners are."""
        if job.variant.strategy == BASELINE:
            alone = hosts.fastest()
            return alone, {0: alone.host[0].slowness}
        numbers = range(hosts.learners)
        return hosts, {n: self.slow.get(n, 1.0) * hosts.host_of(n).slowness for n in numbers}

    def settings(self, hosts: Hosts) -> dict[str, Any]:
        """All that the runs depend on, by name, but for strategy and seed."""
        settings = {
            **settings_of(self.plan.base),
            "slow": {str(number): factor for number, factor in self.slow.items()},
            **{f"hosts.{key}": value for key, value in hosts.model_dump(mode="json").items()},
        }
        del settings["seed"], settings["hosts.minibatch_ms"]
        return settings

    def costed(self, jobs: Sequence[ComparisonRun]) -> Hosts:
        """The hosts with all costs: as given, of real runs, as in the directory, or measured now.

        Raises:
            UserError: the directory cannot be made, or a cost is not the one that it was begun
                with, or cannot be measured.
        """
        check_place(self.out, "simulation")
        hosts = self.hosts or one_host(self.plan.base.learner_range[1])
        if self.runs:
            real = calibrate(self.runs, self.plan.base)
            hosts = hosts.with_costs(real.minibatch_ms, real.shared_memory)
            if self.hosts is None:
                here = hosts.host[0].model_copy(update={"contention": real.contention})
                hosts = hosts.model_copy(update={"host": [here]})
        file = self.out / HOSTS
        if file.exists():
            saved = read_hosts(file)
            hosts = hosts.with_costs(saved.minibatch_ms, saved.shared_memory)
            for optimizer, cost in saved.minibatch_ms.items():
                if hosts.minibatch_ms[optimizer] != cost:
                    raise UserError(
                        f"{self.out} was begun with minibatch_ms.{optimizer.value} {cost:g}, and "
                        f"this is {hosts.minibatch_ms[optimizer]:g}: name another --out"
                    )
        costs = dict(hosts.minibatch_ms)
        for config in {job.config.chosen_optimizer: job.config for job in jobs}.values():
            name = config.chosen_optimizer
            if name in costs:
                continue
            if not config.prep:
                raise UserError(
                    f"minibatch_ms.{name.value} is missing in --hosts: without PREP it cannot be "
                    "measured"
                )
            costs[name] = round(1000 * minibatch_seconds(config), 4)
            self.say(f"measured: a minibatch with {name.value} takes {costs[name]:.3g} ms")
        memory = hosts.shared_memory or message_cost()
        return hosts.model_copy(update={"minibatch_ms": costs, "shared_memory": memory})
