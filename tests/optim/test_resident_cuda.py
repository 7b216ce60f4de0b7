"""Natural gradients on a GPU: nothing waits for it, and a captured step is the step."""

from __future__ import annotations

import pytest
import torch
from test_resident import Ours, Stream, error

from unisono.optim.residence import captured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_captured_steps_are_those_of_the_host() -> None:
    stream, host = Stream(), Ours()
    ours = Ours(device=torch.device("cuda"))
    first = stream.minibatch(1.0)
    host.begin(*first)
    ours.begin(*first)
    turns = {updating: captured(lambda u=updating: ours.turn(u)) for updating in (False, True)}  # type: ignore[misc]
    ours.natural.forget()
    follow = captured(ours.natural.follow)
    for t in range(20):
        updating = t <= 10 or (t - 10) % 4 == 0
        rows = stream.minibatch(1.0)
        host.fill(*rows)
        ours.fill(*rows)
        host.turn(updating)
        if updating:
            host.natural.follow()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        turns[updating]()
        if updating:
            follow()
        torch.cuda.set_sync_debug_mode("default")
        assert error(ours.gradients(), list(host.gradients())) < 1e-4, t
