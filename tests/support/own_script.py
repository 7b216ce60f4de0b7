"""A user's own script, which says what each of its learners did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCRIPT = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import unisono

def train(strategy):
    torch.manual_seed(0)
    x = torch.randn(720, 4)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    with unisono.Learner(model, optimizer, strategy) as learner:
        for x, y in learner.draw(loader):
            learner.step(torch.nn.functional.cross_entropy(model(x), y))
            steps += 1
        with learner.consensus():
            weight = model.weight.flatten().tolist()
        said = {"number": learner.number, "learners": learner.learners, "steps": steps}
        said |= {"is_leader": learner.is_leader, "weight": weight}
    with open(os.path.join(sys.argv[1], f"{strategy}-{learner.number}.json"), "a") as file:
        file.write(json.dumps(said) + "\\n")

for strategy in sys.argv[2:]:
    train(strategy)
"""


def said(folder: Path, strategy: str, learners: int) -> list[dict[str, Any]]:
    """What each learner wrote, once each."""
    found = []
    for number in range(learners):
        (line,) = (folder / f"{strategy}-{number}.json").read_text().splitlines()
        found.append(json.loads(line))
    return found


def is_one_run(folder: Path, strategy: str, learners: int) -> bool:
    found = said(folder, strategy, learners)
    steps = sum(each["steps"] for each in found)
    is_leader = sum(each["is_leader"] for each in found)
    same = all(each["weight"] == found[0]["weight"] for each in found)
    return steps == 90 and is_leader == 1 and same and found[0]["learners"] == learners
