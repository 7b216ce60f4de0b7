"""A model that is split by layers over the processes of a learner, on PyTorch's own pipelining.

Two learners of two processes: unisono launch --learners 2 --processes-per-learner 2 \
                                   examples/split_model.py
Two learners of one process:   unisono launch --learners 2 examples/split_model.py

Each process computes its layers of a microbatch while the next one computes those behind them. The
strategy sees one model: process 0 has all parameters, and sends them with each minibatch.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

import unisono

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--microbatches", type=int, default=4)
parser.add_argument("--save", default=None)
options = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(6_400, 32)
y = (x @ torch.randn(32, 10)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

sizes = [32, *[options.width] * 5]
hidden = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
model = nn.Sequential(*hidden, nn.Linear(options.width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()

averaging = unisono.Averaging(every=640, sharding=unisono.Sharding.STATIC)
with unisono.Learner(model, optimizer, averaging, slices=False) as learner:
    group = learner.process_group
    rank, size = group.rank(), group.size()
    starts = [part * len(model) // size for part in range(size + 1)]
    part = model[starts[rank] : starts[rank + 1]]  # its layers are those of the model
    stage = PipelineStage(part, rank, size, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, options.microbatches, loss_fn=criterion)
    for inputs, targets in learner.draw(loader, epochs=2):
        losses: list[torch.Tensor] = []  # filled by the last part
        first, last = rank == 0, rank == size - 1
        schedule.step(*([inputs] if first else []), target=targets if last else None, losses=losses)
        # The gradients are there; the Learner adds up the losses and gradients of all parts.
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        learner.step(loss.requires_grad_())
    if learner.is_leader:
        with learner.consensus(), torch.no_grad():
            right = float((model(x).argmax(1) == y).float().mean())
            print(f"{right:.1%} right", flush=True)
            if options.save:
                torch.save(model.state_dict(), options.save)
