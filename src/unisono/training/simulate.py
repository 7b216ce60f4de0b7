"""``unisono simulate``: strategies on a simulated cluster, with real gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unisono.data import ChunkSource, FrameSource, Part
from unisono.errors import UserError
from unisono.fabric.local.background import now
from unisono.report.outcome import RunOutcome, read_result
from unisono.report.report import write_report
from unisono.report.simulation_table import SimulatedRow, table
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.simulation.hosts import Hosts, one_host, read_hosts
from unisono.training.compare_variants import (
    BASELINE,
    ComparisonRun,
    Plan,
    Variant,
    plan_comparison,
)
from unisono.training.costs import message_cost, minibatch_seconds
from unisono.training.plan_file import planned, settings_of
from unisono.training.simulated_run import simulate_run
from unisono.training.train import check

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
            if not 0 <= int(number) < learners or not 0 < float(factor) < float("inf"):
                raise ValueError
        except ValueError:
            raise UserError(
                f"--slow {text!r} is not LEARNER=FACTOR, with a learner from 0 to {learners - 1} "
                "and a factor above 0; for example 0=5"
            ) from None
    return slow


def plan_simulation(
    prep: Path,
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
        sets=[*sets, "threads=1", "device=cpu"],
    )
    if plan.base.recipe.enabled:
        raise UserError("--set recipe.enabled=true: Kaldi's recipe cannot be simulated yet")
    return plan


@dataclass(kw_only=True)
class Simulate:
    """Runs what is not done yet, and makes the table.

    Solo runs on the fastest host, and is never slowed down.
    """

    plan: Plan
    out: Path
    hosts: Hosts | None
    """As a user gave them; None: one host."""
    slow: Mapping[int, float]
    say: Callable[[str], None]

    def run(self) -> list[str]:
        """Everything: hosts.toml, the runs, table.txt, report.html; returns the table.

        Raises:
            UserError: bad input, or another simulation's directory.
        """
        jobs = [
            self._job(variant, seed) for seed in self.plan.seeds for variant in self.plan.variants
        ]
        for job in jobs:
            check(job.config)
        hosts = self._costed(jobs)
        settings = {
            **settings_of(self.plan.base),
            "slow": {str(number): factor for number, factor in self.slow.items()},
            **{f"hosts.{key}": value for key, value in hosts.model_dump(mode="json").items()},
        }
        del settings["seed"], settings["hosts.minibatch_ms"]
        with planned(self.out, settings, "simulate", "simulation"):
            write_atomically(self.out / HOSTS, hosts.dump().encode())
            sources: dict[Part, FrameSource | ChunkSource] = {}
            for number, job in enumerate(jobs, start=1):
                self._run(job, hosts, sources, f"[{number}/{len(jobs)}]")
            rows = self._rows(jobs)
            lines = table(rows, self.plan.base.epochs)
            write_atomically(self.out / TABLE, ("\n".join(lines) + "\n").encode())
            finished = [path for row in rows for _, path in row.runs]
            if finished:
                write_report(finished, self.out / "report.html")
        return lines

    def _job(self, variant: Variant, seed: int) -> ComparisonRun:
        job = self.plan.job(self.out, variant, 1.0, seed)
        return replace(job, path=self.out / f"{variant.folder}-{seed}")

    def _costed(self, jobs: Sequence[ComparisonRun]) -> Hosts:
        """The hosts with all costs: as given, as in the directory, or measured now."""
        hosts = self.hosts or one_host(self.plan.base.learner_range[1])
        file = self.out / HOSTS
        if file.exists():
            saved = read_hosts(file)
            hosts = hosts.with_costs_of(saved)
            for optimizer, cost in saved.minibatch_ms.items():
                if hosts.minibatch_ms[optimizer] != cost:
                    raise UserError(
                        f"{self.out} was begun with minibatch_ms.{optimizer.value} {cost:g}, and "
                        f"this is {hosts.minibatch_ms[optimizer]:g}: name another --out"
                    )
        costs = dict(hosts.minibatch_ms)
        for config in {job.config.chosen_optimizer: job.config for job in jobs}.values():
            name = config.chosen_optimizer
            if name not in costs:
                costs[name] = round(1000 * minibatch_seconds(config), 4)
                self.say(f"measured: a minibatch with {name.value} takes {costs[name]:.3g} ms")
        memory = hosts.shared_memory or message_cost()
        return hosts.model_copy(update={"minibatch_ms": costs, "shared_memory": memory})

    def _run(
        self,
        job: ComparisonRun,
        hosts: Hosts,
        sources: dict[Part, FrameSource | ChunkSource],
        place: str,
    ) -> None:
        name = f"{place} {job.variant.name}, seed {job.seed}"
        if self._ended(job) is not RunOutcome.FAILED:
            self.say(f"{name}: done before")
            return
        alone = job.variant.strategy == BASELINE
        began = now()
        where, slow = (hosts.fastest(), {}) if alone else (hosts, self.slow)
        simulate_run(job.path, job.config, where, slow, sources)
        summary = RunDirectory(job.path).read_summary()
        if summary is None or summary.validation_logprob is None:
            self.say(f"{name}: diverged")
            return
        speed = summary.examples / (now() - began)
        self.say(
            f"{name}: log-prob {summary.validation_logprob:.4f} after {summary.wall_s:.1f} virtual "
            f"seconds ({speed:,.0f} frames a second of real time)"
        )

    def _ended(self, job: ComparisonRun) -> RunOutcome:
        return read_result(job.path, job.seed).ended

    def _rows(self, jobs: Sequence[ComparisonRun]) -> list[SimulatedRow]:
        return [
            SimulatedRow(
                variant.name,
                variant.strategy == BASELINE,
                [
                    (job.seed, job.path)
                    for job in jobs
                    if job.variant == variant and self._ended(job) is RunOutcome.FINISHED
                ],
            )
            for variant in self.plan.variants
        ]
