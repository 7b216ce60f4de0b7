"""``unisono simulate --timing``: how long strategies take, with byte counts in place of tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from unisono.report.comparison import align
from unisono.runs.directory import write_atomically
from unisono.simulation.hosts import Hosts
from unisono.simulation.timeline import Timeline
from unisono.training.cluster_timing import ClusterTiming, Load, time_run
from unisono.training.compare_variants import ComparisonRun
from unisono.training.plan_file import planned
from unisono.training.simulation_plan import HOSTS, TABLE, Simulation
from unisono.training.timelines import TIMELINE, write_timelines

TIMING = "timing.json"


@dataclass
class SimulateTiming:
    """Times each strategy, and makes the table."""

    simulation: Simulation
    load: Load

    def run(self) -> list[str]:
        """Everything: hosts.toml, timing.json, table.txt, timeline.svg; returns the table.

        Raises:
            UserError: bad input, or another simulation's directory.
        """
        simulation, out = self.simulation, self.simulation.out
        seed = simulation.plan.seeds[0]
        jobs = [simulation.job(variant, seed) for variant in simulation.plan.variants]
        hosts = simulation.costed(jobs)
        settings = {**simulation.settings(hosts), "timing": asdict(self.load)}
        with planned(out, settings, "simulate", "simulation"):
            write_atomically(out / HOSTS, hosts.dump().encode())
            timelines = [Timeline() for _ in jobs]
            timings = [self._time(*each, hosts) for each in zip(jobs, timelines, strict=True)]
            names = [job.variant.name for job in jobs]
            write_timelines(out, list(zip(names, timings, timelines, strict=True))[1:])
            lines = self._table(timings)
            whole = {"load": asdict(self.load), "rows": [timing.to_json() for timing in timings]}
            write_atomically(out / TIMING, json.dumps(whole, indent=1).encode())
            write_atomically(out / TABLE, ("\n".join(lines) + "\n").encode())
        return lines

    def _time(self, job: ComparisonRun, timeline: Timeline, hosts: Hosts) -> ClusterTiming:
        where, slowness = self.simulation.place(job, hosts)
        count = self.load.minibatches * job.config.epochs
        return time_run(
            job, where, slowness, replace(self.load, minibatches=count), timeline=timeline
        )

    def _table(self, rows: Sequence[ClusterTiming]) -> list[str]:
        alone = rows[0].timing.seconds
        epochs = self.simulation.plan.base.epochs
        heads = ["strategy", "learners", "s an epoch", "speed-up", "computing", "waiting"]
        cells = [[*heads, "staleness", "MB sent", "slowest host", "busiest link"]]
        for row in rows:
            timing, link = row.timing, row.busiest_link
            host, milliseconds = row.slowest_host
            stale = "" if timing.staleness is None else f"{timing.staleness:.2f}"
            cells.append(
                [
                    timing.strategy,
                    f"{timing.learners}",
                    f"{timing.seconds / epochs:.2f}",
                    f"{alone / timing.seconds:.2f}",
                    f"{timing.computing:.1%}",
                    f"{timing.waiting:.1%}",
                    stale,
                    f"{timing.bytes_sent / 1e6:,.0f}",
                    f"{host} ({milliseconds:.3g} ms)",
                    "" if link is None else f"{link[0]} ({link[1]:.0%})",
                ]
            )
        note = (
            "Virtual seconds; speed-ups are over solo. Shares are of the learners' time. Slowest "
            "host: milliseconds of a minibatch; busiest link: share of the time that it is used. "
            f"Bytes of every link: {TIMING}; what the learners do: {TIMELINE}."
        )
        return ["", *align(cells), "", note]
