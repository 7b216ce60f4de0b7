"""One user's loop on every place where learners can live, and small things to train."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

import unisono
from unisono.coordinator.client import Abandoned
from unisono.coordinator.journal import MemoryJournal
from unisono.coordinator.requests import Requests
from unisono.coordinator.service import Service, serve
from unisono.coordinator.state import State
from unisono.fabric import COORDINATOR
from unisono.fabric.local.host import Host
from unisono.learner.placement import (
    COORDINATOR_SOCKET,
    LaunchedProcess,
    SingleProcess,
    at_placement,
    commit_checkpoint,
)
from unisono.pool.order import Order
from unisono.simulation import run_loops

EXAMPLES, INPUTS, CLASSES, BATCH = 104, 6, 3, 8
"""13 minibatches an epoch."""
LIMIT_S = 150.0
_one_at_a_time = threading.Lock()


@dataclass
class Ran:
    """How a run of several loops ended."""

    state: State
    errors: dict[int, Exception] = field(default_factory=dict)

    @property
    def counts(self) -> Any:
        return self.state.pool.counts

    def raise_first(self) -> Ran:
        for error in sorted(self.errors.values(), key=lambda e: isinstance(e, Abandoned)):
            raise error
        return self


def alone(loop: Callable[[], None], *, check: bool = True) -> Ran:
    """As plain ``python train.py``."""
    placement = SingleProcess()
    errors: dict[int, Exception] = {}
    with at_placement(placement):
        try:
            loop()
        except Exception as error:
            errors[0] = error
    assert check or errors
    ran = Ran(State(1) if placement.service is None else placement.service.state, errors)
    return ran.raise_first() if check else ran


def simulated(loop: Callable[[], None], learners: int, *, check: bool = True, **how: Any) -> Ran:
    """On the virtual clock."""
    run = run_loops(loop, learners=learners, check=False, **how)
    ran = Ran(run.state, run.errors)
    return ran.raise_first() if check else ran


def threads(
    loop: Callable[[], None],
    learners: int,
    *,
    check: bool = True,
    timeout: float = 20.0,
    requests: Requests | None = None,
    sink: Callable[[dict[str, Any]], None] | None = None,
) -> Ran:
    """Each learner a thread of this process with sockets of its own, the coordinator, too."""
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        directory = Path(folder)
        host = Host(directory, COORDINATOR_SOCKET)
        node = host.node(COORDINATOR)
        service = Service(
            node,
            MemoryJournal(),
            expected=learners,
            timeout=timeout,
            on_checkpoint=commit_checkpoint,
            requests=requests,
            sink=sink,
        )
        node.spawn("serve", lambda: serve(service))
        errors: dict[int, Exception] = {}

        def main(number: int) -> None:
            try:
                with at_placement(LaunchedProcess(directory, number, learners, timeout)):
                    loop()
            except Exception as error:
                errors[number] = error

        crowd = [threading.Thread(target=main, args=(n,), daemon=True) for n in range(learners)]
        for thread in crowd:
            thread.start()
        deadline = time.monotonic() + LIMIT_S
        for thread in crowd:
            thread.join(max(0.0, deadline - time.monotonic()))
        hung = [thread for thread in crowd if thread.is_alive()]
        assert not hung, _stacks(hung)
        host.close()
    ran = Ran(service.state, errors)
    return ran.raise_first() if check else ran


def _stacks(hung: list[threading.Thread]) -> str:
    frames = sys._current_frames()
    stacks = ["".join(traceback.format_stack(frames[t.ident])) for t in hung if t.ident in frames]
    return f"not over after {LIMIT_S:g} s:\n" + "\n".join(stacks)


def dataset(examples: int = EXAMPLES) -> TensorDataset:
    """Points in classes; the same each time."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(examples, INPUTS, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return TensorDataset(x, y)


def network(seed: int = 1, *, dropout: float = 0.0, norm: bool = False) -> nn.Sequential:
    """A small classifier; threads share torch's generator, so one is made at a time."""
    with _one_at_a_time:
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Linear(INPUTS, 10), nn.Tanh()]
        if norm:
            layers.append(nn.BatchNorm1d(10))
        if dropout:
            layers.append(nn.Dropout(dropout))
        return nn.Sequential(*layers, nn.Linear(10, CLASSES))


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters as one vector, copied."""
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def plain_batches(
    epochs: int = 1, *, batch: int = BATCH, examples: int = EXAMPLES, seed: int = 0
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What one learner draws, worked out by hand."""
    x, y = dataset(examples).tensors
    order = Order(examples, seed)
    for epoch in range(epochs):
        for start in range(0, examples, batch):
            places: NDArray[np.int64] = order.indices(epoch, start, min(start + batch, examples))
            wanted = torch.from_numpy(places)
            yield x[wanted], y[wanted]


DYNAMIC_AVERAGING = unisono.Averaging(every=2 * BATCH, sharding=unisono.Sharding.DYNAMIC)
STATIC_AVERAGING = unisono.Averaging(every=2 * BATCH, sharding=unisono.Sharding.STATIC)
SHARING: dict[str, Any] = {
    "allreduce": "allreduce",
    "static": STATIC_AVERAGING,
    "dynamic": DYNAMIC_AVERAGING,
    "gossip": unisono.GossipRandom(every=2 * BATCH),
    "delay": "delay-by-one",
}
"""Every way of sharing, with short rounds."""
DYNAMIC = {"dynamic", "gossip"}
"""Those whose result depends on who was faster."""
ALL: dict[str, Any] = {"solo": "solo", **SHARING}
