"""What the processes of a learner of ``unisono train`` tell each other of a minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]

from unisono.config import ComputePrecision
from unisono.learner.process_group import ProcessGroup, breaking
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


class InnerGroup(ProcessGroup):
    """The process group of a learner of ``unisono train``: process 0 has the data."""

    def __init__(
        self, store: Path, rank: int, size: int, device: torch.device, timeout: timedelta
    ) -> None:
        super().__init__(FileStore(str(store), size), rank, size, device, timeout)
        self._device = device

    def send_slices(self, whole: Tensor, rows: Sequence[int]) -> Tensor:
        """Sends each helper its examples; returns those of process 0."""
        slices = torch.split(whole, list(rows))
        with breaking():
            for rank, part in enumerate(slices[1:], start=1):
                if len(part):
                    dist.send(part.contiguous(), rank)
        return slices[0]

    def receive_slice(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The examples of this helper."""
        received = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        if len(received):
            with breaking():
                dist.recv(received, 0)
        return received
