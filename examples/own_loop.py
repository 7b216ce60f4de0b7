"""A user's own loop: mixed precision, clipping, accumulation, validation, resume.

One learner:             python examples/own_loop.py
Three on this machine:   unisono launch --learners 3 examples/own_loop.py --strategy averaging
Two of two processes:    unisono launch --learners 2 --processes-per-learner 2 examples/own_loop.py
Go on after a kill:      the same command with --resume
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

import unisono

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", default=None)  # the word that decides how learners agree
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--checkpoints", default=None)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

# A toy problem: which of 10 random directions is a vector closest to?
directions = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))


def make_data(examples: int, seed: int) -> TensorDataset:
    """Vectors and the direction that each is closest to."""
    x = torch.randn(examples, 32, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x @ directions.T).argmax(1))


train = DataLoader(make_data(20_000, 1), batch_size=50, shuffle=True)
heldout = DataLoader(make_data(2_000, 2), batch_size=500)

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))
model.to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
accumulate = 2  # minibatches a step


def validate() -> float:
    """Share of held-out vectors that are classified rightly."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in heldout)
    model.train()
    return right / 2_000


with unisono.Learner(
    model,
    optimizer,
    options.strategy,
    checkpoints=options.checkpoints,
    resume=options.resume,
    extra_state={"scaler": scaler},
) as learner:
    scheduler = learner.scheduler(optimizer, lambda progress: 0.2**progress)
    for step, (x, y) in enumerate(learner.draw(train, epochs=options.epochs), start=1):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = criterion(model(x.to(device)), y.to(device)) / accumulate
        last = step % accumulate == 0
        learner.backward(scaler.scale(loss), accumulate=not last)
        if last:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)  # your own objects: they work as ever
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
        if learner.every(examples=20_000):  # true on one learner only
            with learner.consensus():  # the model holds the consensus inside
                print(f"{learner.progress:4.0%}  held out: {validate():.1%}", flush=True)
    if learner.is_leader:  # true on one learner only, when everything is trained
        with learner.consensus():
            print(f"done: {validate():.1%} right, {learner.rounds} round(s)", flush=True)
