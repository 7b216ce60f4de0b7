"""``unisono simulate --timing``: how long strategies take, with byte counts in place of tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from unisono.config import Config
from unisono.data import Part, Prep
from unisono.errors import UserError
from unisono.models import build
from unisono.report.comparison import align
from unisono.runs.directory import write_atomically
from unisono.simulation.hosts import Hosts, TrainingTable
from unisono.simulation.network import HostNetwork
from unisono.simulation.timing import OnCompute, Timing, time_strategy
from unisono.training.builders import shape_of, strategy_of
from unisono.training.compare_variants import ComparisonRun
from unisono.training.plan_file import planned
from unisono.training.simulation_plan import HOSTS, TABLE, Simulation

TIMING = "timing.json"


@dataclass(frozen=True)
class Load:
    """What is to be trained."""

    minibatches: int
    """Of one epoch."""
    parameters: int


def load_of(config: Config, training: TrainingTable | None) -> Load:
    """That of prepared data and the configured model; without data, what the hosts file says.

    Raises:
        UserError: nothing tells it, or the data cannot be read.
    """
    if not config.prep:
        if training is None:
            raise UserError(
                "without PREP the size of the data and the model is needed: --minibatches N and "
                "--parameters N, or [training] in --hosts with examples and parameters"
            )
        return Load(-(-training.examples // config.minibatch), training.parameters)
    prep = Prep.open(Path(config.prep))
    model = build(config.model, seed=0, **shape_of(config, prep))
    minibatches = -(-prep.frames_of(Part.TRAIN) // config.minibatch)
    return Load(minibatches, sum(p.numel() for p in model.parameters()))


def time_run(
    job: ComparisonRun,
    hosts: Hosts,
    slowness: Mapping[int, float],
    load: Load,
    on_compute: OnCompute | None = None,
) -> Timing:
    """Times one run.

    Args:
        job: the strategy; its learners fit the hosts.
        hosts: with all costs.
        slowness: how many times longer than at speed 1 a minibatch takes at each learner.
        load: what the run trains, in all.
        on_compute: told of each minibatch that was computed.
    """
    config = job.config
    return time_strategy(
        strategy_of(config),
        name=job.variant.name,
        learners=hosts.learners,
        minibatches=load.minibatches,
        batch_size=config.minibatch,
        parameters=load.parameters,
        prefetch=config.prefetch,
        cost=hosts.minibatch_ms[config.chosen_optimizer] / 1000,
        slowness=slowness,
        spread={n: hosts.host_of(n).spread for n in range(hosts.learners)},
        network=HostNetwork(hosts),
        on_compute=on_compute,
    )


@dataclass
class SimulateTiming:
    """Times each strategy, and makes the table."""

    simulation: Simulation
    load: Load

    def run(self) -> list[str]:
        """Everything: hosts.toml, timing.json, table.txt; returns the table.

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
            timings = [self._time(job, hosts) for job in jobs]
            lines = self._table(timings)
            whole = {"load": asdict(self.load), "rows": [asdict(timing) for timing in timings]}
            write_atomically(out / TIMING, json.dumps(whole, indent=1).encode())
            write_atomically(out / TABLE, ("\n".join(lines) + "\n").encode())
        return lines

    def _time(self, job: ComparisonRun, hosts: Hosts) -> Timing:
        where, slowness = self.simulation.place(job, hosts)
        count = self.load.minibatches * job.config.epochs
        return time_run(job, where, slowness, replace(self.load, minibatches=count))

    def _table(self, timings: Sequence[Timing]) -> list[str]:
        alone = timings[0].seconds
        epochs = self.simulation.plan.base.epochs
        heads = ["strategy", "learners", "s an epoch", "speed-up", "computing", "waiting"]
        cells = [[*heads, "staleness", "MB sent"]]
        for timing in timings:
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
                ]
            )
        note = "Virtual seconds; speed-ups are over solo. Shares are of the learners' time."
        return ["", *align(cells), "", note]
