"""PyTorch's DistributedDataParallel on a PREP: the rows `ddp` of time_to_accuracy.py.

    torchrun --standalone --nproc-per-node 8 benchmarks/ddp_training.py PREP --out FILE [--seed 0]

Model, minibatch of a process, epochs, validations, precision and schedule are those of `unisono
train`, the optimizer is SGD with momentum. The rate is that of one process times the number of
processes, at most 4 times, with a warm-up: with 8 times the rate it diverges. The clock stands
still while process 0 validates and the others wait for it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from unisono.config import load
from unisono.data import Part
from unisono.fabric.local.background import now, process_start
from unisono.models import build
from unisono.runs.directory import write_atomically
from unisono.training.bench_worker import end_process
from unisono.training.builders import make_optimizer, open_data, shape_of, source_of
from unisono.training.objective import FrameStates
from unisono.training.precision import autocast, choose_precision
from unisono.training.rates import make_schedule
from unisono.training.validation import score
from unisono.training.validator import TIMES_AN_EPOCH


def main() -> None:
    """Trains; process 0 writes the curve after each validation."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("prep", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    keys = {"prep": str(options.prep), "learners": dist.get_world_size()}
    sets = ["strategy.name=allreduce", "optimizer=sgd", f"seed={options.seed}"]
    config = load(None, sets, keys)
    prep = open_data(config)
    model = build(config.model, seed=config.seed, **shape_of(config, prep))
    train, heldout = (source_of(config, prep, p, model, None) for p in (Part.TRAIN, Part.HELDOUT))
    schedule = make_schedule(config)
    optimizer = make_optimizer(config, model, schedule.rate(0.0))
    shared = DistributedDataParallel(model)
    device = torch.device("cpu")
    precision = choose_precision(config.precision, device, model)
    step, steps = 0, len(train) // (config.minibatch * dist.get_world_size())
    total, between = config.epochs * steps, max(1, steps // TIMES_AN_EPOCH)
    found: dict[str, Any] = {"points": [], "start_up_s": now() - process_start(), "accuracy": None}
    if dist.get_rank() == 0:
        write_atomically(options.out, json.dumps(found).encode())
    dist.barrier()
    began, spent = time.monotonic(), 0.0
    for chosen in minibatches(len(train), config.minibatch, config.epochs, config.seed):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step / total)
        x, y = train.batch(chosen)
        optimizer.zero_grad()
        with autocast(precision, device):
            loss = functional.cross_entropy(shared(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        step += 1
        if step % between and step < total:
            continue
        dist.barrier()
        spent += time.monotonic() - began
        if dist.get_rank() == 0:
            examples = min(config.validation.examples or len(heldout), len(heldout))
            scored = score(FrameStates(), model, heldout, examples, device)
            found["points"].append([spent, scored.logprob])
            rate = step * config.minibatch * dist.get_world_size() / spent
            found |= {"wall_s": spent, "examples_per_s": rate, "accuracy": scored.accuracy}
            write_atomically(options.out, json.dumps(found).encode())
        dist.barrier()
        began = time.monotonic()
    end_process()


def minibatches(examples: int, size: int, epochs: int, seed: int) -> Iterator[np.ndarray]:
    """This process' minibatches: every epoch in another order, the same for all processes."""
    world, rank = dist.get_world_size(), dist.get_rank()
    for epoch in range(epochs):
        order = np.random.default_rng((seed, epoch)).permutation(examples)
        for start in range(0, examples - world * size + 1, world * size):
            yield order[start + rank * size : start + (rank + 1) * size]


if __name__ == "__main__":
    main()
