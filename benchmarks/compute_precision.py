"""Computing in bfloat16: is it faster on this device, and is as much learned?

    python benchmarks/compute_precision.py PREP --out DIR [--seeds 3] [--set key=value]...

times a step of the default network in float32 and in bfloat16, in turns, and trains PREP with each
optimizer in both, once a seed; the difference of the final held-out log-probs is by pairs of equal
seeds. Times on a CPU are CPU seconds of one thread, so that other work on the machine matters
little. What is done in DIR stays done.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch.nn import functional

from unisono.config import ComputePrecision, Config, load
from unisono.models import build
from unisono.report.statistics import Estimate, estimate
from unisono.runs.directory import RunDirectory
from unisono.training.precision import autocast
from unisono.training.train import train
from unisono.training.worker import choose_device, make_optimizer

PRECISIONS = (ComputePrecision.FLOAT32, ComputePrecision.BFLOAT16)
OPTIMIZERS = ("sgd", "ng-sgd")
INPUTS, STATES = 462, 1800
"""11 frames of 42 numbers; the tied states of 8 h of speech."""
TURNS, STEPS = 7, 16


def step_ms(config: Config) -> dict[ComputePrecision, float]:
    """Milliseconds of a step in each precision: the median of turns."""
    device = choose_device(config, 0)
    shape = {"inputs": INPUTS, "outputs": STATES, "hidden": config.network.hidden}
    model = build("dnn", seed=0, **shape, dropout=0.0, batch_norm=False).to(device)
    optimizer = make_optimizer(config, model, 0.01)
    x = torch.randn(config.minibatch, INPUTS, device=device)
    y = torch.randint(STATES, (config.minibatch,), device=device)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[ComputePrecision, list[float]] = {precision: [] for precision in PRECISIONS}
    for _ in range(TURNS):
        for precision in PRECISIONS:
            for number in range(STEPS + 1):
                if number == 1:
                    began = clock()
                with autocast(precision, device):
                    loss = functional.cross_entropy(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[precision].append(1000 * (clock() - began) / STEPS)
    return {precision: statistics.median(found) for precision, found in times.items()}


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
    print("optimizer   precision  ms a step     log-prob  difference (90% interval)", flush=True)
    for optimizer in OPTIMIZERS:
        keys = [f"optimizer={optimizer}", "threads=1", *options.set]
        step = step_ms(load(None, keys, {}))
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
                f"{optimizer:12}{precision.value:11}{step[precision]:9.1f}"
                f"{statistics.mean(found[precision]):13.4f}  {less}",
                flush=True,
            )


if __name__ == "__main__":
    main()
