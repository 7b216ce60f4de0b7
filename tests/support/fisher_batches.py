"""A `FisherBatch` driven as `OnlineNaturalGradient` is: one minibatch of one matrix at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from unisono.optim.device_preconditioner import DeviceEstimate
from unisono.optim.fisher_batch import FisherBatch
from unisono.optim.natural_gradient import update_weight


class BatchedNaturalGradient:
    """All matrices have one history and one smoothing; ranks, dimensions and periods differ."""

    def __init__(
        self,
        sizes: list[tuple[int, int]],
        periods: list[int],
        *,
        num_samples_history: float = 2000.0,
        alpha: float = 4.0,
        device: str = "cpu",
    ) -> None:
        self.batch = FisherBatch(
            sizes,
            num_samples_history=num_samples_history,
            alpha=alpha,
            device=torch.device(device),
        )
        self._history = num_samples_history
        self.estimates = [
            DeviceEstimate(self.batch, index, lambda: None, dim=dim, rank=rank, period=period)
            for index, ((dim, rank), period) in enumerate(zip(sizes, periods, strict=True))
        ]

    def precondition(self, index: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the preconditioned rows and their scale."""
        estimate, (count, dim) = self.estimates[index], x.shape
        rows = x.new_zeros(count, self.batch.columns(index))
        rows[:, :dim] = x
        if estimate.needs_rows:
            estimate.start(x, update_weight(count, self._history))
        updating = estimate.is_due
        estimate.count()
        scale = self.batch.precondition(index, rows, updating=updating)
        if updating:
            self.batch.update()
        return rows[:, :dim], scale
