"""Computing in bfloat16: is it faster on this device, and is as much learned?

    python benchmarks/compute_precision.py PREP --out DIR [--seeds 3] [--set key=value]...

times a step of each model in float32 and in bfloat16, in turns, and trains PREP with each optimizer
in both, once a seed; the difference of the final held-out log-probs is by pairs of equal
seeds. Times on a CPU are CPU seconds of one thread, so that other work on the machine matters
little. What is done in DIR stays done.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from unisono.config import ComputePrecision, Config, load
from unisono.models import Takes, build, find
from unisono.report.statistics import Estimate, estimate
from unisono.runs.directory import RunDirectory
from unisono.training.builders import choose_device, make_optimizer
from unisono.training.precision import autocast
from unisono.training.train import train

PRECISIONS = (ComputePrecision.FLOAT32, ComputePrecision.BFLOAT16)
OPTIMIZERS = ("sgd", "ng-sgd")
FEATURES, STATES = 42, 1800
"""Numbers a frame; the tied states of 8 h of speech."""
TURNS, STEPS = 7, 16


MODELS: dict[str, dict[str, Any]] = {
    "dnn": {"hidden": [512, 512, 512]},
    "tdnn": {"hidden": [512, 512, 512, 512]},
    "lstm": {"hidden": [256, 256]},
}


def minibatch(model: nn.Module, name: str) -> torch.Tensor:
    """256 frames to classify: by themselves with their context, or 8 chunks of 32."""
    if find(name).takes is Takes.FRAMES:
        return torch.randn(256, 11 * FEATURES)
    around = sum(int(getattr(model, side)) for side in ("left", "right"))
    return torch.randn(8, around + 32, FEATURES)


def step_ms(name: str, config: Config) -> dict[ComputePrecision, float]:
    """Milliseconds of a step in each precision: the median of turns."""
    device = choose_device(config, 0)
    inputs = 11 * FEATURES if find(name).takes is Takes.FRAMES else FEATURES
    model = build(name, seed=0, inputs=inputs, outputs=STATES, **MODELS[name]).to(device)
    optimizer = make_optimizer(config, model, 0.01)
    x = minibatch(model, name).to(device)
    y = torch.randint(STATES, (256,), device=device)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[ComputePrecision, list[float]] = {precision: [] for precision in PRECISIONS}
    for _ in range(TURNS):
        for precision in PRECISIONS:
            for number in range(STEPS + 1):
                if number == 1:
                    began = clock()
                with autocast(precision, device):
                    loss = functional.cross_entropy(model(x).flatten(0, -2), y)
                torch.autograd.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[precision].append(1000 * (clock() - began) / STEPS)
    return {precision: statistics.median(found) for precision, found in times.items()}


def print_steps() -> None:
    """A line for each model and optimizer."""
    print("model  optimizer    float32   bfloat16")
    for name in MODELS:
        for optimizer in OPTIMIZERS:
            found = step_ms(name, load(None, [f"optimizer={optimizer}", "threads=1"], {}))
            cells = "".join(f"{found[precision]:8.1f} ms" for precision in PRECISIONS)
            print(f"{name:7}{optimizer:9}{cells}", flush=True)


def show(difference: Estimate) -> str:
    """A difference with its interval."""
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.4f}"
    return f"{difference.mean:+.4f} ({difference.low:+.4f} to {difference.high:+.4f})"


def main() -> None:
    """Times, trains what is not done yet, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prep", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="any key, for all of them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_steps()
    print("\noptimizer   precision     log-prob  difference (90% interval)", flush=True)
    for optimizer in OPTIMIZERS:
        keys = [f"optimizer={optimizer}", "threads=1", *options.set]
        found: dict[ComputePrecision, list[float]] = {}
        for precision in PRECISIONS:
            for seed in range(options.seeds):
                path = options.out / f"{optimizer}-{precision.value}-{seed}"
                chosen = [*keys, f"precision={precision.value}", f"seed={seed}"]
                run = RunDirectory(path)
                if not run.summary.is_file():
                    config = load(None, chosen, {"prep": str(options.prep.resolve())})
                    train(config, path, resume=path.exists())
                summary = run.read_summary()
                assert summary is not None and summary.validation_logprob is not None
                found.setdefault(precision, []).append(summary.validation_logprob)
            base = found[ComputePrecision.FLOAT32]
            differences = [a - b for a, b in zip(found[precision], base, strict=True)]
            less = "" if precision is ComputePrecision.FLOAT32 else show(estimate(differences))
            print(
                f"{optimizer:12}{precision.value:11}"
                f"{statistics.mean(found[precision]):11.4f}  {less}",
                flush=True,
            )


if __name__ == "__main__":
    main()
