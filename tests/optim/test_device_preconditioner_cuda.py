"""The implementation for GPUs on one: captured work gives the numbers of the CPU, without waits."""

from __future__ import annotations

import pytest
import torch
from test_fisher_batch import SIZES, Rows, error

from support.fisher_batches import BatchedNaturalGradient
from unisono.optim.device_preconditioner import captured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_captured_work_gives_the_numbers_of_the_cpu() -> None:
    rows, host = Rows(), BatchedNaturalGradient(SIZES, [4] * len(SIZES))
    device = BatchedNaturalGradient(SIZES, [4] * len(SIZES), device="cuda")
    for index, x in enumerate(rows.minibatch()):
        host.precondition(index, x)
        device.precondition(index, x.cuda())
    batch = device.batch
    buffers = [torch.zeros(64, batch.columns(i), device="cuda") for i in range(len(SIZES))]
    scales = [torch.ones((), device="cuda") for _ in SIZES]

    def work(updating: bool) -> None:
        for index, x in enumerate(buffers):
            scales[index].copy_(batch.precondition(index, x, updating=updating))

    graphs = {updating: captured(lambda u=updating: work(u)) for updating in (False, True)}  # type: ignore[misc]
    batch.discard_pending()
    update = captured(batch.update)
    for t in range(1, 20):
        updating = t <= 10 or (t - 10) % 4 == 0
        minibatch = rows.minibatch()
        for buffer, x in zip(buffers, minibatch, strict=True):
            buffer[:, : x.shape[1]] = x.cuda()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            graphs[updating]()
            if updating:
                update()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for index, x in enumerate(minibatch):
            wanted, wanted_scale = host.precondition(index, x)
            found = scales[index] * buffers[index][:, : x.shape[1]]
            assert error(found.cpu(), wanted_scale * wanted) < 1e-4, t
