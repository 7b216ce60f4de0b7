"""One run of ``unisono simulate``: the code of ``unisono train`` on a virtual clock."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.config import Config
from unisono.errors import Diverged
from unisono.launch.coordinator_main import Events, outcome_of
from unisono.simulation import run_loops, virtual_now
from unisono.simulation.disturbances import disturbances_of
from unisono.simulation.hosts import Hosts
from unisono.simulation.network import HostNetwork
from unisono.training.display import Display
from unisono.training.link_precision import with_link_precision
from unisono.training.sources import Sources
from unisono.training.train import conclude, made, note_start
from unisono.training.worker import Simulated, Worker

SIMULATED = "simulated"
"""The last event of a simulated run."""


def simulate_run(
    path: Path,
    config: Config,
    hosts: Hosts,
    slowness: Mapping[int, float],
    sources: Sources,
) -> None:
    """Trains from the beginning, whatever is there; how it went is in the run's directory.

    Args:
        path: of the run.
        config: of the run; its learners fit the hosts.
        hosts: with all costs.
        slowness: how many times longer than at speed 1 a minibatch takes at each learner.
        sources: of the data, once they are read; for the next run.

    Raises:
        UserError: bad input, or a run that failed.
    """
    config = with_link_precision(config, several_hosts=len(hosts.host) > 1)
    if path.exists():
        shutil.rmtree(path)
    simulated = Simulated(virtual_now, sources)
    numbers = range(config.first_learners)
    with made(path, config, resume=False) as run:
        note_start(run, config, 0.0, simulated=True)
        with contextlib.closing(Events(run.metrics)) as events, Display() as display:

            def sink(event: dict[str, Any]) -> None:
                events(event)
                display(event)

            try:
                loops = run_loops(
                    lambda: Worker(run, resume=False, simulated=simulated).run(),
                    learners=len(numbers),
                    cost=hosts.minibatch_ms[config.chosen_optimizer] / 1000,
                    slowness=slowness,
                    spread={n: hosts.host_of(n).spread for n in numbers},
                    network=HostNetwork(hosts),
                    disturbances=disturbances_of(hosts, config.seed),
                    timeout=config.timeout_s,
                    limit=float("inf"),
                    sink=sink,
                    hosts={n: hosts.host_of(n).name for n in numbers},
                )
            except Diverged:
                return
            told = {"learner": None, "computed_s": list(loops.computed_s.values())}
            sink({"event": SIMULATED, "time": loops.seconds, **told})
    conclude(run, config, outcome_of(loops.state))
