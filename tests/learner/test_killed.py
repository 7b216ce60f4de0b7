"""kill -9 of a learner with workers, in real processes: the others know at once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from support.alive import is_alive
from unisono.launch.local import Launch

SCRIPT = """
import json, os, signal, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import unisono

folder, context, strategy = sys.argv[1:]
strategies = {
    "allreduce": "allreduce",
    "static": unisono.Averaging(every=16, sharding=unisono.Sharding.STATIC),
    "dynamic": unisono.Averaging(every=16, sharding=unisono.Sharding.DYNAMIC),
}

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, place):
        return torch.full((4,), float(place)) / 400, os.getpid()

if __name__ == "__main__":
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Points(), 4, num_workers=2, multiprocessing_context=context, shuffle=True)
    seen = set()
    with unisono.Learner(model, optimizer, strategies[strategy]) as learner:
        for step, (x, pids) in enumerate(learner.draw(loader)):
            seen.update(pids.tolist())
            learner.step(model(x).square().mean())
            if learner.number == 1 and step == 7:
                with open(folder + "/pids.json", "w") as file:
                    json.dump([os.getpid(), *sorted(seen)], file)
                os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("context", "strategy"),
    [
        pytest.param("fork", "static", marks=pytest.mark.long),
        pytest.param("fork", "dynamic", marks=pytest.mark.long),
        pytest.param("forkserver", "allreduce", marks=pytest.mark.long),
    ],
)
def test_a_learner_with_workers_is_killed(context: str, strategy: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "unisono.launch.script_main", str(script)]
    began = time.monotonic()
    outcome = Launch(
        command=[*command, str(tmp_path), context, strategy],
        learners=2,
        timeout=300.0,
        respawn=False,
        say=lambda line: None,
    ).run()
    seconds = time.monotonic() - began
    assert outcome.lost == ["learner 1"] and not outcome.failed
    assert outcome.coordinator["over"]
    assert outcome.coordinator["minibatches"]["committed"] == 100
    # Silence alone would have been noticed after 300 s: its end was seen.
    assert seconds < 50
    learner, *workers = json.loads((tmp_path / "pids.json").read_text())
    assert len(workers) == 2 and learner not in workers
    deadline = time.monotonic() + 100
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "its workers did not end"
        time.sleep(0.01)
