"""What natural gradient costs: a step of ng-sgd against a step of SGD, in turns in one run.

    python benchmarks/natural_gradient.py

trains two copies of 440 -> 5 x 1024 -> 4000 (ReLU, cross entropy, minibatch 512) on one thread,
one step of each in turn, and prints the median over blocks of four steps (one update of the
estimates in each) of ng-sgd / SGD, with the 5th and 95th percentile, in wall-clock and in
processor time. Both optimizers have momentum 0, as Kaldi has by default; SGD is the fused one.

The floor. Rows N = 512; a layer's inputs have D_x = inputs + 1 columns and rank 20, its output
derivatives D_g = outputs and rank 80. Over the six layers sum D_x = 5566 and sum D_g = 9120.

    SGD step              6 N x 8.74 M weights, less the first layer's input: 26.4 GFLOP
    precondition          4 N (20 sum D_x + 80 sum D_g) = 1.72 GFLOP         +6.5 %
    update, every fourth  2 N (...) / 4 = 0.22 GFLOP, and 4 r^2 sum D in
                          float64 / 4, 0.06 GFLOP at half the speed          +1.1 %
    bytes                 rows in and out once: 8 N sum D = 60 MB            +1.5 % at 15 GB/s
    the bound of a step   one reading of the gradient, 35 MB                 +0.9 % at 15 GB/s

So no less than 1.10 can be had if these products run as fast as the large ones. Rows are read and
written once there, where seven passes are made: copy (with the column of ones, and N times the
derivative of a mean), norm, product, update in place (a reading and a writing), norm, scale.
docs/evidence/natural_gradient.md says where the rest goes. `--device cuda` measures on a GPU
instead, see natural_gradient_cuda.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import natural_gradient_cuda
import torch
from torch import nn
from torch.nn import functional

from unisono.models import DNN
from unisono.optim import NaturalGradientSGD

INPUTS, HIDDEN, OUTPUTS, ROWS, PERIOD = 440, [1024] * 5, 4000, 512, 4


def main() -> None:
    """Prints the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=20, help="of four steps of each")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--profile", action="store_true", help="cuda: print the kernels")
    options = parser.parse_args()
    if options.device == "cuda":
        natural_gradient_cuda.main(options.blocks)
        if options.profile:
            natural_gradient_cuda.profile()
        return
    torch.set_num_threads(1)
    models = [DNN(inputs=INPUTS, outputs=OUTPUTS, hidden=HIDDEN) for _ in range(2)]
    steps = [
        stepper(models[0], torch.optim.SGD(models[0].parameters(), lr=0.1, fused=True)),
        stepper(models[1], NaturalGradientSGD(models[1], 0.1, update_period=PERIOD)),
    ]
    for _ in range(3 * PERIOD):  # the first ten minibatches all update
        for step in steps:
            step()
    times: list[list[tuple[float, float]]] = [[], []]
    for _ in range(options.blocks * PERIOD):
        for each, step in zip(times, steps, strict=True):
            wall, processor = time.perf_counter(), time.process_time()
            step()
            each.append((time.perf_counter() - wall, time.process_time() - processor))
    for place, clock in enumerate(("wall-clock", "processor")):
        sgd, natural = ([t[place] for t in each] for each in times)
        ratios = sorted(
            sum(natural[i : i + PERIOD]) / sum(sgd[i : i + PERIOD])
            for i in range(0, len(sgd), PERIOD)
        )
        low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
        spread = statistics.quantiles(sgd, n=20)
        print(
            f"{clock:10}  ng-sgd / SGD {statistics.median(ratios):.3f} "
            f"(90% of blocks {low:.3f} to {high:.3f}); step of SGD "
            f"{1e3 * statistics.median(sgd):.0f} ms "
            f"(90% {1e3 * spread[0]:.0f} to {1e3 * spread[-1]:.0f}), of ng-sgd "
            f"{1e3 * statistics.median(natural):.0f} ms"
        )


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Returns a function that takes one step on frames of its own."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, ROWS, INPUTS, generator=generator)
    y = torch.randint(0, OUTPUTS, (8, ROWS), generator=generator)
    taken = 0

    def step() -> None:
        nonlocal taken
        loss = functional.cross_entropy(model(x[taken % 8]), y[taken % 8])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        taken += 1

    return step


if __name__ == "__main__":
    main()
