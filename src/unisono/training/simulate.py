"""``unisono simulate``: strategies on a simulated cluster, with real gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.data import Part, Prep, halve
from unisono.fabric.local.background import now
from unisono.report.outcome import RunOutcome, read_result
from unisono.report.report import write_report
from unisono.report.simulation_table import SimulatedRow, table
from unisono.runs.directory import RunDirectory, write_atomically
from unisono.simulation.hosts import Hosts
from unisono.training.compare_variants import BASELINE, ComparisonRun
from unisono.training.plan_file import planned
from unisono.training.simulated_run import simulate_run
from unisono.training.simulation_plan import HOSTS, TABLE, Simulation
from unisono.training.sources import Sources
from unisono.training.train import check


@dataclass
class Simulate:
    """Runs what is not done yet, and makes the table."""

    simulation: Simulation

    def run(self) -> list[str]:
        """Everything: hosts.toml, the runs, table.txt, report.html; returns the table.

        Raises:
            UserError: bad input, or another simulation's directory.
        """
        simulation, out = self.simulation, self.simulation.out
        jobs = simulation.jobs()
        for job in jobs:
            check(job.config)
        halve(Prep.open(Path(simulation.plan.base.prep)).speakers_of(Part.HELDOUT))
        hosts = simulation.costed(jobs)
        with planned(out, simulation.settings(hosts), "simulate", "simulation"):
            write_atomically(out / HOSTS, hosts.dump().encode())
            known: dict[int | None, Sources] = {}
            for number, job in enumerate(jobs, start=1):
                augment = job.config.augment
                # The masks of SpecAugment, which a source holds, depend on the seed.
                masked = augment.frequency_masks or augment.time_masks
                sources = known.setdefault(job.seed if masked else None, {})
                self._run(job, hosts, sources, f"[{number}/{len(jobs)}]")
            rows = self._rows(jobs)
            lines = table(rows, simulation.plan.base.epochs)
            write_atomically(out / TABLE, ("\n".join(lines) + "\n").encode())
            finished = [path for row in rows for _, path in row.runs]
            write_report(finished, out / "report.html")
        return lines

    def _run(
        self,
        job: ComparisonRun,
        hosts: Hosts,
        sources: Sources,
        place: str,
    ) -> None:
        say = self.simulation.say
        name = f"{place} {job.variant.name}, seed {job.seed}"
        if _ended(job) is not RunOutcome.FAILED:
            say(f"{name}: done before")
            return
        began = now()
        where, slowness = self.simulation.place(job, hosts)
        simulate_run(job.path, job.config, where, slowness, sources)
        summary = RunDirectory(job.path).read_summary()
        if summary is None or summary.validation_logprob is None:
            say(f"{name}: diverged")
            return
        speed = summary.examples / (now() - began)
        say(
            f"{name}: log-prob {summary.validation_logprob:.4f} after {summary.wall_s:.1f} virtual "
            f"seconds ({speed:,.0f} frames a second of real time)"
        )

    def _rows(self, jobs: Sequence[ComparisonRun]) -> list[SimulatedRow]:
        return [
            SimulatedRow(
                variant.name,
                variant.strategy == BASELINE,
                [
                    (job.seed, job.path)
                    for job in jobs
                    if job.variant == variant and _ended(job) is RunOutcome.FINISHED
                ],
            )
            for variant in self.simulation.plan.variants
        ]


def _ended(job: ComparisonRun) -> RunOutcome:
    return read_result(job.path, job.seed).ended
