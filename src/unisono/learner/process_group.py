"""The processes of one learner: what travels between them, over torch.distributed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from unisono.fabric.codec import JSON, from_plain, to_plain
from unisono.learner.storage import ModelStorage

T = TypeVar("T")

NO_LIMIT = timedelta(days=1000)
"""Other processes wait for process 0 as long as it waits for a round: they end with it."""
PATIENCE = 10
"""How many times the run's timeout process 0 waits for another process within a step."""


class GroupBroken(Exception):  # noqa: N818
    """Another process of the learner is gone, or was silent for too long."""


def is_of_group(error: BaseException) -> bool:
    """Whether torch raised it since another process did not do its part in a collective."""
    return isinstance(error, dist.DistError) or (
        type(error) is RuntimeError and ("gloo" in str(error) or "NCCL" in str(error))
    )


class ProcessGroup:
    """The default process group, of one learner's processes: gloo on CPUs, NCCL on GPUs.

    Every process calls the same methods in the same order.

    Raises:
        GroupBroken: another process is gone, or has not done its part within ``timeout``.
    """

    def __init__(
        self, store: Store, rank: int, size: int, device: torch.device, timeout: timedelta
    ) -> None:
        self.rank = rank
        self.size = size
        # The processes are on one host; gloo would look for the host's name on the network.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with breaking():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timeout,
            )

    def announce(self, message: Any) -> None:
        """Process 0: tells the others something, a dataclass."""
        text = JSON.encode(to_plain(message)).encode()
        self.share([torch.tensor([len(text)])])
        self.share([torch.frombuffer(bytearray(text), dtype=torch.uint8)])

    def hear(self, kind: type[T]) -> T:
        """Another process: what process 0 announces, however long it takes."""
        length = torch.zeros(1, dtype=torch.int64)
        self.share([length])
        text = torch.empty(int(length), dtype=torch.uint8)
        self.share([text])
        return from_plain(kind, json.loads(text.numpy().tobytes()))

    def share(self, tensors: Sequence[Tensor]) -> None:
        """All processes get the values that process 0 has."""
        with breaking():
            for work in [dist.broadcast(t.detach(), 0, async_op=True) for t in tensors]:
                work.wait()

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Process 0 gets the sums over all processes; what the others have then is undefined."""
        with breaking():
            for work in [dist.reduce(t.detach(), 0, async_op=True) for t in tensors]:
                work.wait()

    def sum_for_all(self, tensor: Tensor) -> None:
        """All processes get the sum over them."""
        with breaking():
            dist.all_reduce(tensor)

    def close(self) -> None:
        """Gives connections back, so that this process can make another group."""
        dist.destroy_process_group()


class SharedModel:
    """The model of one process of a learner: the same parameters, gradients that are summed up."""

    def __init__(self, model: nn.Module, group: ProcessGroup) -> None:
        self._storage = ModelStorage(model)
        self._group = group
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        pairs = [(norm.running_mean, norm.running_var) for norm in norms]
        self._statistics = [t for pair in pairs for t in pair if t is not None]
        self._before: list[Tensor] = []
        """The statistics before the forward pass, the same everywhere."""

    def share(self) -> None:
        """Before a step: everybody gets the parameters and buffers of process 0."""
        self._group.share(self._storage.tensors)
        self._before = [statistic.clone() for statistic in self._statistics]

    def add_up(self, weight: float) -> None:
        """After a backward pass: process 0 gets the sum of the gradients."""
        trained = [p for p in self._storage.parameters if p.requires_grad]
        missing = [p for p in trained if p.grad is None]
        for parameter in missing:
            parameter.grad = torch.zeros_like(parameter)
        self._group.add_up([p.grad for p in trained if p.grad is not None])
        for parameter in missing:
            if parameter.grad is not None and not bool(parameter.grad.any()):
                parameter.grad = None  # no process has used it
        if self._statistics:
            self._merge_statistics(weight)

    def _merge_statistics(self, weight: float) -> None:
        """The running statistics of batch norm change by the sum of the changes.

        Each counts with the ``weight`` of its process. Another forward pass of the same minibatch
        may follow, so all processes get them.
        """
        # Copies: the strategy's agent may take a snapshot of the model at any time.
        pairs = list(zip(self._statistics, self._before, strict=True))
        changes = torch.cat([(now - before).flatten() * weight for now, before in pairs])
        self._group.sum_for_all(changes)
        parts = torch.split(changes, [before.numel() for before in self._before])
        for (statistic, before), change in zip(pairs, parts, strict=True):
            before += change.view_as(before)
            statistic.copy_(before)


@contextmanager
def breaking() -> Iterator[None]:
    """What torch raises inside of a collective is about the group."""
    try:
        yield
    except RuntimeError as error:
        raise GroupBroken(str(error).partition("\n")[0]) from error
