"""Natural gradients on a GPU: nothing waits for it, and a captured step is the step."""

from __future__ import annotations

import pytest
import torch
from test_resident import ROWS, SHAPES, Stream, copies, error, resident

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_captured_steps_are_those_of_the_host() -> None:
    stream, host = Stream(), resident()
    device = torch.device("cuda")
    ours = resident(device=device)
    inputs = [torch.zeros(ROWS, i, device=device) for i, _ in SHAPES]
    outputs = [torch.zeros(ROWS, o, device=device) for _, o in SHAPES]
    graphs: dict[bool, torch.cuda.CUDAGraph] = {}
    found = {}
    for t in range(20):
        x, g = stream.minibatch(1.0)
        for buffer, rows in zip([*inputs, *outputs], [*x, *g], strict=True):
            buffer.copy_(rows)
        if t == 0:
            host.begin(copies(x), copies(g))
            ours.begin(inputs, outputs)
            for updating in (True, False):
                ours.gradients(copies(inputs), copies(outputs), updating=updating)
                ours.follow()
                graphs[updating] = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[updating]):
                    found[updating] = ours.gradients(
                        copies(inputs), copies(outputs), updating=updating
                    )
                    if updating:
                        ours.follow()
            ours.begin(inputs, outputs)  # as if nothing had been tried
        updating = host.updates()
        wanted = host.gradients(copies(x), copies(g), updating=updating)
        if updating:
            host.follow()
        torch.cuda.set_sync_debug_mode("error")
        graphs[updating].replay()
        torch.cuda.set_sync_debug_mode("default")
        moved = [(w.cpu(), b.cpu()) for w, b in found[updating]]
        assert error(moved, list(wanted)) < 1e-4, t
