"""The loop of ``examples/split_model.py`` without parts, microbatches and pipelining.

``python -m support.whole_model FILE``: the leader saves the model there.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unisono


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(6_400, 32)
    y = (x @ torch.randn(32, 10)).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    layers: list[nn.Module] = []
    for inputs in [32, 128, 128, 128, 128]:
        layers.append(nn.Sequential(nn.Linear(inputs, 128), nn.ReLU()))
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    averaging = unisono.Averaging(every=640, sharding=unisono.Sharding.STATIC)
    with unisono.Learner(model, optimizer, averaging, quiet=True) as learner:
        for a, b in learner.draw(loader, epochs=2):
            learner.step(nn.functional.cross_entropy(model(a), b))
        if learner.is_leader:
            with learner.consensus():
                pairs = zip(before, model.parameters(), strict=True)
                assert all(float((p - q.detach()).abs().max()) > 0.05 for p, q in pairs)
                torch.save(model.state_dict(), sys.argv[1])


if __name__ == "__main__":
    main()
