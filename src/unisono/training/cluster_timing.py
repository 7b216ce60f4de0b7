"""How long one strategy takes on given hosts, and what hosts and links do meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.config import Config
from unisono.data import Prep
from unisono.errors import UserError
from unisono.models import build
from unisono.simulation.disturbances import disturbances_of
from unisono.simulation.hosts import Hosts, HostTable, TrainingTable
from unisono.simulation.network import HostNetwork, LinkUse
from unisono.simulation.timeline import NotedNetwork, Timeline
from unisono.simulation.timing import OnCompute, Timing, time_strategy
from unisono.training.builders import positions_of, shape_of, strategy_of
from unisono.training.compare_variants import ComparisonRun
from unisono.training.link_precision import with_link_precision


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
    minibatches = positions_of(config, prep).per_epoch
    return Load(minibatches, sum(p.numel() for p in model.parameters()))


@dataclass(frozen=True)
class ClusterTiming:
    """What a run took, and what its hosts and links did.

    Attributes:
        timing: of the run.
        links: of hosts and racks.
        places: the host of each learner.
    """

    timing: Timing
    links: Sequence[LinkUse]
    places: Sequence[HostTable]

    @property
    def slowest_host(self) -> tuple[str, float]:
        """Its name, and the milliseconds of a minibatch there."""
        trained: dict[str, int] = {}
        computed: dict[str, float] = {}
        timing = self.timing
        for host, n, s in zip(self.places, timing.minibatches, timing.computed_s, strict=True):
            trained[host.name] = trained.get(host.name, 0) + n
            computed[host.name] = computed.get(host.name, 0.0) + s
        ms = {name: 1000 * computed[name] / n for name, n in trained.items() if n}
        return max(ms.items(), key=lambda item: item[1])

    @property
    def busiest_link(self) -> tuple[str, float] | None:
        """Whose it is, and the share of the time that it is used; None where none is used."""
        busiest = max(self.links, key=lambda link: link.busy_s)
        share = busiest.busy_s / max(self.timing.seconds, 1e-9)
        return (busiest.name, share) if busiest.busy_s else None

    def to_json(self) -> dict[str, Any]:
        """A row of timing.json."""
        return {
            **asdict(self.timing),
            "slowest_host": self.slowest_host[0],
            "busiest_link": None if self.busiest_link is None else self.busiest_link[0],
            "links": [asdict(link) for link in self.links],
        }


def time_run(
    job: ComparisonRun,
    hosts: Hosts,
    slowness: Mapping[int, float],
    load: Load,
    on_compute: OnCompute | None = None,
    timeline: Timeline | None = None,
) -> ClusterTiming:
    """Times one run.

    Args:
        job: the strategy; its learners fit the hosts.
        hosts: with all costs.
        slowness: how many times longer than at speed 1 a minibatch takes at each learner.
        load: what the run trains, in all.
        on_compute: told of each minibatch that was computed.
        timeline: in its place, takes what the learners do.
    """
    config = with_link_precision(job.config, several_hosts=len(hosts.host) > 1)
    places = hosts.places
    network = HostNetwork(hosts) if timeline is None else NotedNetwork(hosts, timeline)
    timing = time_strategy(
        strategy_of(config),
        name=job.variant.name,
        learners=hosts.learners,
        minibatches=load.minibatches,
        batch_size=config.minibatch,
        parameters=load.parameters,
        prefetch=config.prefetch,
        cost=hosts.minibatch_ms[config.chosen_optimizer] / 1000,
        slowness=slowness,
        spread={number: host.spread for number, host in enumerate(places)},
        network=network,
        disturbances=disturbances_of(hosts, job.seed),
        on_compute=on_compute if timeline is None else timeline.computed,
    )
    return ClusterTiming(timing, network.links(), places)
