"""The same toy learners in real processes, with real kills."""

from __future__ import annotations

from typing import Any

import pytest

from support.process_cluster import ProcessCluster
from unisono.strategies import (
    ADPSGD,
    AllReduce,
    Averaging,
    DelayByOne,
    GossipFixed,
    GossipRandom,
    Precision,
    PushKind,
    Server,
    Sharding,
)
from unisono.testing import invariants
from unisono.testing.losses import Marks
from unisono.testing.properties import Promises, check_alone, check_mean

STRATEGIES = {
    "allreduce": AllReduce(),
    "static": Averaging(every=8, sharding=Sharding.STATIC),
    "dynamic": Averaging(every=8, sharding=Sharding.DYNAMIC),
    "gossip-fixed": GossipFixed(every=8),
    "gossip-random": GossipRandom(every=8),
    "adpsgd": ADPSGD(every=4),
    "delay": DelayByOne(),
    "server": Server(push_every=2, shards=2),
    "server-waiting": Server(push=PushKind.GRADIENT, overlap=False, shards=1),
    "static-int8": Averaging(every=8, sharding=Sharding.STATIC, precision=Precision.INT8),
    "gossip-random-int8": GossipRandom(every=8, precision=Precision.INT8),
    "server-int8": Server(push_every=2, shards=2, precision=Precision.INT8),
}
EXCHANGING = ["gossip-fixed", "gossip-random", "gossip-random-int8", "adpsgd"]
LOSES_AFTER = {**dict.fromkeys(EXCHANGING, 2), "server": 1, "server-int8": 1, "server-waiting": 2}
"""Deaths from which on work may be lost with the dead."""
PLAIN = [name for name in STRATEGIES if name not in ("server", "server-int8")]
"""Those with which one learner is solo."""
MIXING = [name for name in STRATEGIES if not name.startswith(("server", "static-int8"))]


@pytest.mark.parametrize("name", PLAIN)
def test_one_process_is_solo(name: str) -> None:
    check_alone(lambda: STRATEGIES[name], on=ProcessCluster)


@pytest.mark.parametrize("name", MIXING)
def test_processes_keep_the_mean(name: str) -> None:
    promises = Promises(pairs=name in EXCHANGING)
    check_mean(lambda: STRATEGIES[name], on=ProcessCluster, promises=promises)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    "kill",
    [{0: 5}, *(pytest.param(kill, marks=pytest.mark.long) for kill in ({}, {1: 3}, {0: 2, 2: 7}))],
    ids=str,
)
def test_kills_lose_nothing(name: str, kill: dict[int, int]) -> None:
    total, learners = 60, 3
    marks = Marks(total, learners, 0.1)
    strategy: Any = STRATEGIES[name]
    toys = ProcessCluster(
        strategy=strategy,
        learners=learners,
        total=total,
        loss=marks,
        kill=kill,
        slowness=dict.fromkeys(range(learners), 5.0),
    )
    run = toys.run()
    assert len(run.survivors) == learners - len(kill)
    assert len(run.state.lost) == len(kill)
    invariants.all_committed(run)
    invariants.all_trained(run, calm=not kill)
    invariants.nothing_lost(run)
    invariants.kept_once(run, marks, loses_after=LOSES_AFTER.get(name))
    invariants.same_end(run, exactly=name != "dynamic")
