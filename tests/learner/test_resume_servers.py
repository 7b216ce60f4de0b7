"""A resumed run on shards has every committed minibatch in its model once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from support.soak import SOAK
from unisono.fabric import Vector
from unisono.fabric.simulated.kernel import SimulatedNetwork
from unisono.fabric.simulated.schedulers import SeededScheduler
from unisono.learner.checkpoint_files import checkpoints, part_names, read_part, read_pool
from unisono.simulation import Join, Kill, Pause, run_loops
from unisono.simulation.faults import Fault
from unisono.simulation.loops import LoopsRun
from unisono.strategies.base import Replica
from unisono.strategies.engines.accumulators import Accumulator, GradientAccumulator

TOTAL, REPLACEMENT = 60, 100
UNDER_WAY = 5
"""Pushes that nobody may have pulled yet when a holder dies."""
FEW, MANY = 3, 150 * SOAK


class Sum(GradientAccumulator):
    """Pushes the sum of gradients, not their mean, so that each minibatch counts."""

    def take(self, model: Vector, share: float, rounds: int) -> Vector:
        total, self._total = self._total, None
        assert total is not None
        return total


@dataclass(frozen=True, kw_only=True)
class Summing(unisono.AveragedServer):
    """A server on which each minibatch is a step of the same size."""

    def accumulator(self, replica: Replica) -> Accumulator:
        return Sum(replica)


@dataclass
class Counting:
    """A model of one weight a shard, to which each minibatch that is applied adds one."""

    strategy: Any
    folder: Path
    every: int = 10
    resume: bool = False
    total: int = TOTAL
    shows: bool = False
    began: list[float] = field(default_factory=list)
    """The consensus before the first step, if it ``shows``."""
    ended: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        model = nn.Linear(self.strategy.shards, 1, bias=False)
        nn.init.zeros_(model.weight)
        with unisono.Learner(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            self.strategy,
            checkpoints=self.folder,
            checkpoint_every=self.every,
            keep=1000,
            resume=self.resume,
            quiet=True,
        ) as learner:
            data = TensorDataset(torch.ones(self.total, self.strategy.shards))
            for (x,) in learner.draw(data, epochs=1, batch_size=1):
                if self.shows and not self.began:
                    with learner.consensus():
                        self.began = model.weight.flatten().tolist()
                learner.step(-model(x).mean())
            if learner.is_leader:
                with learner.consensus():
                    self.ended = model.weight.flatten().tolist()


@dataclass
class Kept:
    """What a checkpoint holds."""

    committed: int
    values: dict[int, float]
    """By shard, as the following."""
    means: dict[int, float]
    averaged: dict[int, int]


def kept_in(folder: Path) -> Kept:
    kept = Kept(sum(b - a for a, b in read_pool(folder)["committed"]), {}, {}, {})
    names = [path.name for path in folder.iterdir()]
    for role in ("learner", "server"):
        for place in range(len(part_names(names, role))):
            strategy = read_part(folder, place, names, role)["strategy"]
            for shard, state in strategy["plain"]["held"].items():
                assert int(shard) not in kept.values, "a shard is in two parts"
                kept.averaged[int(shard)] = state.get("averaged", 0)
            for name, vector in strategy["vectors"].items():
                shard, what = name.split(".", 1)
                found = {"values": kept.values, "mean": kept.means}.get(what)
                if found is not None:
                    found[int(shard)] = float(vector)
    return kept


def rolled_back(run: LoopsRun) -> Counter[int]:
    """Updates that are reported as lost, by shard."""
    lost: Counter[int] = Counter()
    for event in run.events:
        if event["event"] == "restored":
            lost[event["shard"]] += event["rolled_back"]
    return lost


def check_kept(kept: Kept, strategy: Summing, lost: Counter[int]) -> None:
    """Each shard has every minibatch once, but for what was reported as lost."""
    assert sorted(kept.values) == list(range(strategy.shards))
    for shard, value in kept.values.items():
        missing = (kept.committed - value) / strategy.push_every
        assert 0 <= missing <= lost[shard], f"{kept}, and {lost} lost"
        if shard in kept.means and strategy.push_every == 1 and not strategy.overlap:
            assert kept.means[shard] == pytest.approx(value - (kept.averaged[shard] - 1) / 2)


def one_fault(source: random.Random, learners: int, servers: int, end: float) -> list[Fault]:
    """One member dies, and is replaced or not, or is paused until it is presumed dead."""
    who, at = source.randrange(learners + servers), source.uniform(0.1 * end, 0.8 * end)
    ways: list[list[Fault]] = [[], [Pause(at, who, 9.0)]]
    if learners + servers > 1:
        ways.append([Kill(at, who), Join(at + 1, REPLACEMENT)])
    if learners > 1 or who > 0:
        ways.append([Kill(at, who)])
    return source.choice(ways)


def check_seed(seed: int, folder: Path) -> None:
    """Trains until all are killed, goes on with other numbers of members, and counts."""
    source = random.Random(seed)
    strategy = Summing(
        push=unisono.PushKind.GRADIENT,
        push_every=source.choice([1, 1, 2]),
        shards=source.choice([1, 1, 2, 4]),
        overlap=source.random() < 0.5,
        warm_start=source.choice([0.0, 0.0, 0.2]),
        average_from=source.choice([0.3, 1.0]),
    )
    lost: Counter[int] = Counter()
    done, deaths = 0, 0
    for resume in (False, True):
        learners, servers = source.choice([1, 2, 2, 3]), source.choice([0, 0, 1, 2])
        members = (*range(learners + servers), REPLACEMENT)
        end = source.uniform(10, 25)
        stop = [] if resume else [Kill(end, number) for number in members]
        counting = Counting(strategy, folder, resume=resume)
        run = run_loops(
            counting,
            learners=learners,
            servers=servers,
            faults=[*one_fault(source, learners, servers, end), *stop],
            scheduler=SeededScheduler(seed),
            network=SimulatedNetwork(latency=source.choice([0.01, 0.2])),
            slowness={0: source.uniform(1, 2)},
            timeout=3.0,
            check=resume,
        )
        lost += rolled_back(run)
        deaths += len(run.state.lost)
        assert max(lost.values(), default=0) <= UNDER_WAY * deaths
        for checkpoint in checkpoints(folder):
            check_kept(kept_in(checkpoint), strategy, lost)
        if resume:
            assert done + run.state.pool.counts.committed == TOTAL
            if strategy.average_from == 1:
                end_state = Kept(TOTAL, dict(enumerate(counting.ended)), {}, {})
                check_kept(end_state, strategy, lost)
        elif checkpoints(folder):
            done = kept_in(checkpoints(folder)[-1]).committed
        else:
            return


@dataclass
class Life:
    """Members of a run, and what happens to them; the first life ends with all."""

    learners: int
    servers: int = 0
    faults: tuple[Fault, ...] = ()
    latency: float = 0.01


REPLACED = (Kill(10.3, 1), Join(11.0, 2))
LIVES = {
    "a successor's part": (2, Life(2, 0, REPLACED), Life(2)),
    "a part of one that rejoined": (2, Life(2, 0, (Pause(8.3, 1, 5.0),)), Life(2)),
    "a death before and after": (4, Life(2, 0, (Kill(5.3, 1),)), Life(2, 0, (Kill(15.3, 1),))),
    "a server's death": (2, Life(2, 2, (Kill(5.3, 3),)), Life(2, 2, (Kill(10.3, 3),))),
    "fewer learners": (4, Life(4), Life(2)),
    "no servers any more": (2, Life(2, 2), Life(2)),
    "pushes under way": (1, Life(3, 0, (), 0.2), Life(3, 0, (), 0.2)),
    "pushes under way to servers": (1, Life(3, 1, (), 0.2), Life(3, 1, (), 0.2)),
}


@pytest.mark.parametrize("what", LIVES)
def test_goes_on_from_what_was_applied(what: str, tmp_path: Path) -> None:
    shards, before, after = LIVES[what]
    strategy = Summing(
        push=unisono.PushKind.GRADIENT, shards=shards, overlap=False, average_from=1.0
    )
    for life in (before, after):
        resume = life is after
        counting = Counting(strategy, tmp_path, resume=resume)
        run = run_loops(
            counting,
            learners=life.learners,
            servers=life.servers,
            faults=[*life.faults, *([] if resume else [Kill(20.2, n) for n in range(6)])],
            network=SimulatedNetwork(latency=life.latency),
            slowness={1: 1.3},
            timeout=3.0,
            check=resume,
        )
        lost = rolled_back(run)
        assert max(lost.values(), default=0) <= 2
        if not resume:
            for checkpoint in checkpoints(tmp_path):
                kept = kept_in(checkpoint)
                check_kept(kept, strategy, lost)
    ended = [value + kept.committed - kept.values[s] for s, value in enumerate(counting.ended)]
    check_kept(Kept(TOTAL, dict(enumerate(ended)), {}, {}), strategy, lost)


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("push_every", [1, 8])
def test_a_checkpoint_has_the_last_pushes(push_every: int, servers: int, tmp_path: Path) -> None:
    """Of changes; a minibatch counts for its learner's share of the model."""
    counting = Counting(unisono.Server(push_every=push_every), tmp_path)
    late = SimulatedNetwork(latency=0.2)
    run_loops(counting, learners=2, servers=servers, slowness={1: 1.3}, network=late)
    kept = [kept_in(folder) for folder in checkpoints(tmp_path)]
    assert [[2 * v for v in k.values.values()] for k in kept] == [[k.committed] * 4 for k in kept]
    assert len(kept) > 2 and counting.ended == [TOTAL / 2] * 4


@pytest.mark.parametrize("learners", [1, 2])
def test_elastic_goes_on_from_its_centre(learners: int, tmp_path: Path) -> None:
    strategy = unisono.Elastic(push_every=2, shards=4)
    stop = [Kill(20.2, number) for number in range(3)]
    run_loops(Counting(strategy, tmp_path), learners=3, faults=stop, check=False)
    kept = kept_in(checkpoints(tmp_path)[-1])
    counting = Counting(strategy, tmp_path, resume=True, shows=True)
    run_loops(counting, learners=learners)
    assert counting.began == [kept.values[shard] for shard in range(4)]


@pytest.mark.parametrize("seed", [*range(FEW), 1030])
def test_each_minibatch_is_in_the_model_once(seed: int, tmp_path: Path) -> None:
    check_seed(seed, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(300 + 300 * SOAK)
@pytest.mark.parametrize("block", range(10))
def test_many_seeds(block: int, tmp_path: Path) -> None:
    for seed in range(1000 + block * MANY // 10, 1000 + (block + 1) * MANY // 10):
        try:
            check_seed(seed, tmp_path / str(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
