"""A user's own loop for learners of several processes, of which one may meet its end.

``python -m support.processes_loop FOLDER STRATEGY EPOCHS [LEARNER PROCESS STEP END]``
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer would import it: forks of a test have it already
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import unisono
from unisono.launch.exit_codes import exit_on_error
from unisono.learner.slices import PROCESS
from unisono.strategies.base import Strategy

EXAMPLES, MINIBATCH = 970, 33
"""Minibatches of 33 are split 17 and 16; the last one of an epoch has 13 examples."""
WRAPPED, LOADED = "ddp-", "workers-"
"""Before the name of a strategy: the model is in DistributedDataParallel, too, or the data comes
from workers of the DataLoader."""
TWICE, STEPS = "twice-", "steps-"
"""Two backward passes on each minibatch for one step, with batch norm; or a step after each."""
PER_EPOCH = -(-EXAMPLES // MINIBATCH)
WAYS: dict[str, Callable[[], Strategy]] = {
    "averaging": lambda: unisono.Averaging(every=99, sharding=unisono.Sharding.STATIC),
    "dynamic": lambda: unisono.Averaging(every=99, sharding=unisono.Sharding.DYNAMIC),
    "allreduce": unisono.AllReduce,
    "dropout": lambda: unisono.Averaging(every=99, sharding=unisono.Sharding.STATIC),
}


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, 16, generator=generator)
    return TensorDataset(x, (x @ torch.randn(16, 4, generator=generator)).argmax(1))


def make_model(way: str) -> nn.Module:
    torch.manual_seed(0)
    if way.startswith(TWICE):
        return nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 4))
    dropout = nn.Dropout(0.2 if way == "dropout" else 0.0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), dropout, nn.Linear(32, 4))


def loss_of(model: nn.Module, minibatch: list[Tensor]) -> Tensor:
    x, y = minibatch
    return nn.functional.cross_entropy(model(x), y)


def meet(end: str) -> None:
    if end == "error":
        raise ValueError("a bug of one process alone")
    os.kill(os.getpid(), signal.Signals[end])


def train(folder: Path, way: str, epochs: int, victim: list[str]) -> None:
    """The leader writes the consensus."""
    process = int(os.environ[PROCESS])
    model = make_model(way)
    if process > 0:
        nn.init.zeros_(model[-1].weight)  # type: ignore[index]  # whatever it has, it gets others
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    strategy = WAYS[way.rpartition("-")[2]]()
    workers = 2 if way.startswith(LOADED) else 0
    loader = DataLoader(make_data(), batch_size=MINIBATCH, shuffle=True, num_workers=workers)
    log = folder / f"learner-{os.environ['UNISONO_LEARNER']}.log"
    kept: dict[str, Any] = {}
    if way == "dropout":
        kept = {"checkpoints": folder / "checkpoints", "checkpoint_every": 198, "resume": True}
    with unisono.Learner(model, optimizer, strategy, log=log, quiet=True, **kept) as learner:
        net: nn.Module = model
        if way.startswith(WRAPPED):
            net = DistributedDataParallel(model, process_group=learner.process_group)
        for step, minibatch in enumerate(learner.draw(loader, epochs=epochs)):
            if way.startswith(TWICE):
                learner.backward(loss_of(net, minibatch), accumulate=True)
            elif way.startswith(STEPS):
                learner.step(loss_of(net, minibatch))
            loss = loss_of(net, minibatch)
            if victim[:3] == [str(learner.number), str(process), str(step)]:
                meet(victim[3])
            learner.step(loss)
        with learner.consensus():
            if learner.is_leader:
                torch.save(model.state_dict(), folder / "model.pt")


def main() -> None:
    folder, way, epochs, *victim = sys.argv[1:]
    with exit_on_error():
        train(Path(folder), way, int(epochs), victim)


if __name__ == "__main__":
    main()
