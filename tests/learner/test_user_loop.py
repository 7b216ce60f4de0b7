"""A loop as users have it: mixed precision, clipping, accumulation, a schedule, resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import unisono
from support.loops import (
    BATCH,
    Ran,
    alone,
    dataset,
    flat,
    loss_of,
    network,
    sgd,
    simulated,
    threads,
)
from unisono.learner.checkpoint_files import checkpoints
from unisono.learner.placement import find_placement

EXAMPLES, EPOCHS = 96, 4
TOTAL = EPOCHS * EXAMPLES // BATCH


class StopError(Exception):
    """The power fails."""


@dataclass
class UserLoop:
    """Everything at once."""

    strategy: Any
    checkpoints: Path
    resume: bool = False
    stop_after: int | None = None
    dropout: float = 0.0
    workers: int = 0
    ends: dict[int, torch.Tensor] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    validated: list[tuple[int, float]] = field(default_factory=list)
    skipped: int = 0
    is_leader: list[int] = field(default_factory=list)

    def __call__(self) -> None:
        model = network(dropout=self.dropout, norm=True)
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=3)
        loader = DataLoader(dataset(EXAMPLES), BATCH, shuffle=True, num_workers=self.workers)
        with unisono.Learner(
            model,
            optimizer,
            self.strategy,
            checkpoints=self.checkpoints,
            checkpoint_every=BATCH * 12,
            resume=self.resume,
            extra_state={"scheduler": scheduler, "scaler": scaler},
        ) as learner:
            if self.dropout:
                torch.manual_seed(300 + learner.number)
            for step, (x, y) in enumerate(learner.draw(loader, epochs=EPOCHS), start=1):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(model, (x, y)) / 2
                if learner.epoch == 1 and float(x[0, 0]) > 1.0:
                    loss = loss * 1e30  # overflows when it is scaled
                learner.backward(scaler.scale(loss), accumulate=step % 2 == 1)
                if step % 2 == 0:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                    scheduler.step()
                if learner.every(examples=EXAMPLES):
                    self.validate(model, learner)
                if step == self.stop_after and learner.number == 0:
                    raise StopError
            self.skipped += learner.skipped
            if learner.is_leader:
                self.is_leader.append(learner.number)
            with learner.consensus():
                self.ends[learner.number] = flat(model)
            self.scales[learner.number] = scaler.get_scale()
            self.rates[learner.number] = optimizer.param_groups[0]["lr"]

    def validate(self, model: nn.Module, learner: unisono.Learner) -> None:
        with learner.consensus(), torch.no_grad():
            model.eval()
            loss = loss_of(model, dataset(EXAMPLES).tensors)
            model.train()
        self.validated.append((round(learner.progress * TOTAL), float(loss)))


STRATEGIES: dict[str, Any] = {
    "solo": "solo",
    "allreduce": "allreduce",
    "static": unisono.Averaging(every=4 * BATCH, sharding=unisono.Sharding.STATIC),
    "dynamic": unisono.Averaging(every=4 * BATCH, sharding=unisono.Sharding.DYNAMIC),
    "gossip": unisono.GossipRandom(every=4 * BATCH),
    "adpsgd": unisono.ADPSGD(every=BATCH),
    "delay": "delay-by-one",
}
DYNAMIC = {"dynamic", "gossip", "adpsgd"}


def one(loop: Callable[[], None], learners: int, *, check: bool = True) -> Ran:
    assert learners == 1
    return alone(loop, check=check)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(one, id="alone"),
        pytest.param(simulated, id="simulated"),
        pytest.param(threads, id="threads", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_whole_loop_goes_on_where_it_was(
    strategy: str, place: Callable[..., Ran], tmp_path: Path
) -> None:
    learners = 1 if place is one or strategy == "solo" else 2
    # Threads share torch's generator, so dropout would not repeat there.
    settings: dict[str, Any] = {"dropout": 0.0 if place is threads else 0.2}
    if place is one:
        settings["workers"] = 1
    whole = UserLoop(STRATEGIES[strategy], tmp_path / "whole", **settings)
    ran = place(whole, learners)
    assert ran.counts.committed + ran.counts.skipped == TOTAL
    assert ran.counts.skipped > 0 and whole.skipped > 0
    assert len(whole.validated) == EPOCHS
    assert whole.validated[-1][1] < whole.validated[0][1]
    assert len(whole.is_leader) == 1
    stop = (36 if strategy in DYNAMIC else 28) // learners
    first = UserLoop(STRATEGIES[strategy], tmp_path / "cut", stop_after=stop, **settings)
    if strategy in DYNAMIC and place is threads:
        return  # who draws what, and when a checkpoint is due, is the threads' luck
    ran = place(first, learners, check=False)
    assert any(isinstance(error, StopError) for error in ran.errors.values())
    assert checkpoints(tmp_path / "cut")
    second = UserLoop(STRATEGIES[strategy], tmp_path / "cut", resume=True, **settings)
    ran = place(second, learners)
    assert ran.state.pool.over and second.is_leader == whole.is_leader
    if strategy in DYNAMIC:
        return
    assert second.ends.keys() == whole.ends.keys()
    for number, end in whole.ends.items():
        assert torch.equal(second.ends[number], end)
        assert second.scales[number] == whole.scales[number]
        assert second.rates[number] == whole.rates[number]
    assert whole.validated[-1] == second.validated[-1]


def test_a_checkpoint_inside_an_accumulation(tmp_path: Path) -> None:
    """Where each step is a round the checkpoint waits for the step; nothing is trained twice."""
    for strategy in ("solo", "allreduce"):
        for learners in (1,) if strategy == "solo" else (1, 2):
            ends = []
            for cut in (False, True):
                folder = tmp_path / f"{strategy}{learners}{cut}"
                for resume in (False, True) if cut else (False,):
                    end: dict[int, torch.Tensor] = {}

                    def loop(
                        end: dict[int, torch.Tensor] = end,
                        folder: Path = folder,
                        resume: bool = resume,
                        cut: bool = cut,
                        strategy: str = strategy,
                    ) -> None:
                        model = network(dropout=0.2)
                        optimizer = sgd(model)
                        torch.manual_seed(9 + find_placement().number)
                        with unisono.Learner(
                            model,
                            optimizer,
                            strategy,
                            checkpoints=folder,
                            checkpoint_every=4 * BATCH,
                            resume=resume,
                        ) as learner:
                            dynamic = learner.draw(dataset(96), epochs=2, batch_size=BATCH)
                            for step, batch in enumerate(dynamic, start=1):
                                more = step % 3 != 0
                                learner.backward(loss_of(model, batch) / 3, accumulate=more)
                                if not more:
                                    optimizer.step()
                                    optimizer.zero_grad()
                                if cut and not resume and step == 8:
                                    raise StopError
                        end[learner.number] = flat(model)

                    ran = simulated(loop, learners, check=not (cut and not resume))
                assert ran.state.pool.over
                ends.append(end)
            assert ends[0].keys() == ends[1].keys()
            assert all(torch.equal(ends[0][n], ends[1][n]) for n in ends[0])
