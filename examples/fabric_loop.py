"""A loop of Lightning Fabric; needs lightning-fabric (pip install lightning-fabric).

One learner:             python examples/fabric_loop.py
Three on this machine:   unisono launch --learners 3 examples/fabric_loop.py
"""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unisono


def main() -> None:
    """Trains a classifier; Fabric has the device and the precision, Unisono the learners."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 16, generator=generator)
    y = (x @ torch.randn(16, 4, generator=generator)).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)

    fabric = Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(fabric.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    right = trained = 0
    with unisono.Learner(model, optimizer, unisono.Averaging(every=200)) as learner:
        for batch in learner.draw(loader, epochs=4):
            inputs, targets = fabric.to_device(batch)
            with fabric.autocast():
                scores = model(inputs)
                loss = nn.functional.cross_entropy(scores, targets)
            learner.step(loss)
            if learner.epoch == 3:
                right = right + int((scores.argmax(1) == targets).sum())
                trained += len(targets)
    print(f"learner {learner.number}: {right / max(1, trained):.1%} right in the last epoch")


if __name__ == "__main__":
    main()
