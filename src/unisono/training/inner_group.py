"""What travels between the processes of one learner, over torch.distributed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]

from unisono.config import ComputePrecision
from unisono.fabric.codec import JSON, from_plain, to_plain
from unisono.learner.storage import ModelStorage
from unisono.training.objective import Objective
from unisono.training.precision import autocast


@dataclass(frozen=True)
class Step:
    """What process 0 tells the helpers of a minibatch before it sends them their slices."""

    rows: tuple[int, ...]
    """Examples of each process, in the order of the ranks."""
    frames: int
    """Of the whole minibatch: what its mean loss is a mean over."""
    inputs: tuple[int, ...]
    """The shape of one example."""
    targets: tuple[int, ...]
    """The shape of its targets."""
    seed: int
    """Of what the helpers draw at random, as for dropout."""
    dropout: tuple[float, ...]
    """The share that each dropout layer drops."""
    restarted: bool
    """Whether process 0 begins with new Fisher estimates."""

    def weight(self, rank: int) -> float:
        """The share of the minibatch that a process has."""
        return self.rows[rank] / sum(self.rows)


def slice_rows(rows: int, processes: int) -> tuple[int, ...]:
    """How many examples each process gets: as evenly as can be.

    A minibatch with less than two examples for each goes to process 0 as a whole: batch norm has
    nothing to normalise a single example by.
    """
    if rows < 2 * processes:
        return (rows, *(0,) * (processes - 1))
    return tuple(len(part) for part in torch.arange(rows).tensor_split(processes))


def slice_loss(
    objective: Objective,
    model: nn.Module,
    x: Tensor,
    targets: Tensor,
    frames: int,
    precision: ComputePrecision,
) -> Tensor:
    """The slice's share of the mean loss of a minibatch with so many frames."""
    with autocast(precision, x.device):
        return objective.total(model, x, targets) / frames


class GroupBroken(Exception):  # noqa: N818
    """Another process of the learner is gone, or was silent for too long."""


class InnerGroup:
    """The process group of a learner: gloo on CPUs, and NCCL for what is on GPUs.

    Every process calls the same methods in the same order.

    Raises:
        GroupBroken: another process is gone, or has not done its part within ``timeout``.
    """

    def __init__(
        self, store: Path, rank: int, size: int, device: torch.device, timeout: timedelta
    ) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        # The processes are on one host; gloo would look for the host's name on the network.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with _breaking():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=FileStore(str(store), size),
                rank=rank,
                world_size=size,
                timeout=timeout,
            )

    def announce(self, step: Step) -> None:
        """Process 0: tells the helpers of a step."""
        text = JSON.encode(to_plain(step)).encode()
        self.share([torch.tensor([len(text)])])
        self.share([torch.frombuffer(bytearray(text), dtype=torch.uint8)])

    def next_step(self) -> Step:
        """A helper: waits for process 0, however long it takes."""
        length = torch.zeros(1, dtype=torch.int64)
        self.share([length])
        text = torch.empty(int(length), dtype=torch.uint8)
        self.share([text])
        return from_plain(Step, json.loads(text.numpy().tobytes()))

    def share(self, tensors: Sequence[Tensor]) -> None:
        """All processes get the values that process 0 has."""
        with _breaking():
            for work in [dist.broadcast(t.detach(), 0, async_op=True) for t in tensors]:
                work.wait()

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Process 0 gets the sums over all processes; what the others have then is undefined."""
        with _breaking():
            for work in [dist.reduce(t.detach(), 0, async_op=True) for t in tensors]:
                work.wait()

    def send_slices(self, whole: Tensor, rows: Sequence[int]) -> Tensor:
        """Sends each helper its examples; returns those of process 0."""
        slices = torch.split(whole, list(rows))
        with _breaking():
            for rank, part in enumerate(slices[1:], start=1):
                if len(part):
                    dist.send(part.contiguous(), rank)
        return slices[0]

    def receive_slice(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The examples of this helper."""
        received = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        if len(received):
            with _breaking():
                dist.recv(received, 0)
        return received

    def close(self) -> None:
        """Gives connections back, so that this process can make another group."""
        dist.destroy_process_group()


class SharedModel:
    """The model of one process of a learner: the same parameters, gradients that are summed up."""

    def __init__(self, model: nn.Module, group: InnerGroup) -> None:
        self._storage = ModelStorage(model)
        self._group = group
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        pairs = [(norm.running_mean, norm.running_var) for norm in norms]
        self._statistics = [t for pair in pairs for t in pair if t is not None]

    def share(self) -> None:
        """Before a step: everybody gets the parameters and buffers of process 0."""
        self._group.share(self._storage.tensors)

    def add_up(self, weight: float) -> None:
        """After the backward pass: process 0 gets the sum of the gradients.

        The running statistics of batch norm become the mean over the processes, each with its
        ``weight``.
        """
        trained = [p for p in self._storage.parameters if p.requires_grad]
        missing = [p for p in trained if p.grad is None]
        for parameter in missing:
            parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in trained if p.grad is not None]
        # Copies: the strategy's agent may take a snapshot of the model at any time.
        weighted = [statistic * weight for statistic in self._statistics]
        self._group.add_up([*gradients, *weighted])
        for statistic, mean in zip(self._statistics, weighted, strict=True):
            statistic.copy_(mean)
        for parameter in missing:
            if parameter.grad is not None and not bool(parameter.grad.any()):
                parameter.grad = None  # no process has used it


@contextmanager
def _breaking() -> Iterator[None]:
    """What torch raises inside of a collective is about the group."""
    try:
        yield
    except RuntimeError as error:
        raise GroupBroken(str(error).partition("\n")[0]) from error
