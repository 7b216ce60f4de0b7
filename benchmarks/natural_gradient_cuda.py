"""What natural gradient costs on a GPU: `python benchmarks/natural_gradient.py --device cuda`.

462 -> 5 x 2048 -> 10217 (ReLU, cross entropy), minibatch 1024, bfloat16 products with float32
weights, period 4, ranks 20 and 80. Both steps are made as fast as we can: forward and backward are
written out, compiled, and the same for both, with the outputs padded to 10224; everything is
captured in CUDA graphs. SGD then multiplies the rows of each layer; ng-sgd has
`ResidentNaturalGradient` make them natural first, and bounds its step. `follow`, the update of the
estimates, runs in line or on a stream beside the next forward and backward pass. "As it comes" is
an ordinary loop with autocast: `torch.optim.SGD` and `NaturalGradientSGD` as anybody uses them.

The floor. N = 1024 rows; sum D_x = 10708 with ranks 20 (padded to 80 here), sum D_g = 20457 with
rank 80; 38.7 M weights.

    SGD step              6 N x 38.7 M = 238 GFLOP: 0.30 ms at 790 TFLOP/s; weights, gradients and
                          their bfloat16 copies, 26 bytes a weight: 0.21 ms at 4.8 TB/s
    precondition          4 N 80 (sum D_x + sum D_g) = 10 GFLOP: 0.013 ms
    rows                  64 MB of bfloat16: read for the norm, for h, read and written once more,
                          and read for the norm after: 0.32 GB, 0.07 ms
    the bound of a step   one reading of the gradient, 155 MB: 0.03 ms
    an update             y = h'x and z = y y' in float64, 20 MB read and written a few times:
                          0.03 ms, every fourth step; the r x r work is 180 dependent launches

So about 0.1 ms, a tenth of the step, is what moving the numbers costs; the rest is launches.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.models import DNN
from unisono.optim import NaturalGradientSGD
from unisono.optim.fisher import FisherEstimate
from unisono.optim.layer import Estimation, Side
from unisono.optim.max_change import BoundedStep
from unisono.optim.resident import ResidentNaturalGradient, product
from unisono.optim.resident import Shape as LayerShape

ESTIMATION = Estimation(
    rank_in=20, rank_out=80, update_period=4, num_samples_history=2000.0, alpha=4.0
)
RATE = 0.01
Step = Callable[[], None]


@dataclass(frozen=True)
class Shape:
    """What is trained."""

    inputs: int = 462
    hidden: int = 2048
    layers: int = 5
    outputs: int = 10217
    rows: int = 1024

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each layer."""
        widths = [self.inputs, *[self.hidden] * self.layers, self.outputs]
        return list(pairwise(widths))


class Weights:
    """float32 parameters, and the bfloat16 copies that products are made with."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        torch.manual_seed(0)
        self.shape = shape
        sizes = shape.sizes
        self.weights = [torch.randn(o, i, device=device) * (2 / i) ** 0.5 for i, o in sizes]
        self.biases = [torch.zeros(o, device=device) for _, o in sizes]
        self.narrow = [p.bfloat16() for p in self.all]
        more = -shape.outputs % 16  # outputs that are never right
        last = len(sizes) - 1
        self.narrow[last] = functional.pad(self.narrow[last], (0, 0, 0, more))
        self.narrow[-1] = functional.pad(self.narrow[-1], (0, more), value=-1e30)
        self._copies = [n[: len(p)] for n, p in zip(self.narrow, self.all, strict=True)]
        self.x = torch.randn(shape.rows, shape.inputs, device=device).bfloat16()
        self.y = torch.randint(0, shape.outputs, (shape.rows,), device=device)

    @property
    def all(self) -> list[Tensor]:
        """Weights, then biases."""
        return [*self.weights, *self.biases]

    @property
    def layers(self) -> list[list[Tensor]]:
        """The parameters of each layer."""
        return [list(pair) for pair in zip(self.weights, self.biases, strict=True)]

    def refresh(self) -> None:
        """Copies what was changed."""
        torch._foreach_copy_(self._copies, self.all)


def rows_of(x: Tensor, y: Tensor, narrow: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Forwards and backwards: the rows of each layer, and the derivatives of the mean loss."""
    count = len(narrow) // 2
    weights, biases = narrow[:count], narrow[count:]
    inputs = [x]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs.append(functional.linear(inputs[-1], weight, bias).relu())
    logits = functional.linear(inputs[-1], weights[-1], biases[-1]).float()
    right = torch.arange(logits.shape[1], device=x.device) == y.unsqueeze(1)
    g = ((logits.softmax(1) - right.float()) / len(x)).to(x.dtype)
    derivatives = [g]
    for weight, a in zip(weights[:0:-1], inputs[:0:-1], strict=True):
        g = (g @ weight) * (a > 0)
        derivatives.insert(0, g)
    return inputs, derivatives


class Graph:
    """A captured piece of work; keeps what the work uses, whose addresses are in the graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, work: Step) -> None:
        self._work = work
        self.replay: Step = graph.replay

    def __call__(self) -> None:
        """Runs it."""
        self.replay()


def captured(work: Step) -> Graph:
    """The work as a graph; it is run a few times before.

    Each is captured on a stream of its own: cuBLAS keeps one workspace a stream, and graphs that
    run beside each other must not share it.
    """
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.graph(graph, stream=stream):
        work()
    torch.cuda.synchronize()
    return Graph(graph, work)


# SGD.


def sgd_autograd(shape: Shape, device: torch.device, *, fast: bool) -> Step:
    """As anybody would write it; or compiled and captured."""
    model, x, y, loss_of = ordinary(shape, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)
    compute = torch.compile(loss_of) if fast else loss_of

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compute(x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    if not fast:
        return step
    return captured(step)


def sgd_by_hand(shape: Shape, device: torch.device) -> Step:
    """The counterpart of ours: the same passes, the rows multiplied as they are."""
    w = Weights(shape, device)
    compute = torch.compile(rows_of, dynamic=False)

    def step() -> None:
        inputs, derivatives = compute(w.x, w.y, w.narrow)
        pairs = list(zip(inputs, derivatives, w.biases, strict=True))
        weights = [product(g.T, a)[: len(b)] for a, g, b in pairs]
        biases = [g.sum(0, dtype=torch.float32)[: len(b)] for _, g, b in pairs]
        plain_sgd(w.all, [*weights, *biases])
        w.refresh()

    return captured(step)


def plain_sgd(parameters: list[Tensor], gradients: list[Tensor]) -> None:
    """The fused step."""
    torch._fused_sgd_(
        parameters,
        gradients,
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=RATE,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


# Natural gradient.


def shipped(shape: Shape, device: torch.device) -> Step:
    """`NaturalGradientSGD` in an ordinary loop."""
    model, x, y, loss_of = ordinary(shape, device)
    optimizer = NaturalGradientSGD(model, RATE)

    def step() -> None:
        loss_of(x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


class Natural:
    """Ours, captured: passes, step, updating step and `follow` are a graph each."""

    def __init__(
        self, shape: Shape, device: torch.device, *, beside: bool, compiled: bool = False
    ) -> None:
        self._w = w = Weights(shape, device)
        self._shapes = [LayerShape(inputs=i, outputs=o) for i, o in shape.sizes]
        self._natural = ResidentNaturalGradient(
            self._shapes, ESTIMATION, mean=True, dtype=torch.bfloat16, device=device
        )
        self._rooms = [
            [
                torch.zeros(shape.rows, s.padded(side), dtype=torch.bfloat16, device=device)
                for s in self._shapes
            ]
            for side in Side
        ]
        count = len(shape.sizes)
        changes = [*[0.75] * (count - 1), 1.5]
        self._bounded = BoundedStep(w.layers, [RATE] * count, changes, 2.0)
        self._beside: Any = torch.cuda.Stream() if beside else None  # type: ignore[no-untyped-call]
        self._followed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._natural.load(first_estimates(self._shapes, *rows_of(w.x, w.y, w.narrow)))
        passes = torch.compile(self._fill, dynamic=False)
        turn = torch.compile(self._turn, dynamic=False) if compiled else self._turn

        def step(updating: bool) -> None:
            turn(updating)
            self._bounded.take(self._gradients())
            w.refresh()

        self._passes = captured(passes)
        self._step = captured(lambda: step(False))
        self._updating = captured(lambda: step(True))
        self._natural.forget()
        self._follow = captured(self._natural.follow)
        self._t, self._was = 0, False

    def _fill(self) -> None:
        """Forwards and backwards, rows to their packages."""
        w = self._w
        for rooms, rows in zip(self._rooms, rows_of(w.x, w.y, w.narrow), strict=True):
            for room, some in zip(rooms, rows, strict=True):
                room[:, : some.shape[1]].copy_(some)

    def _turn(self, updating: bool) -> None:
        for layer, (x, g) in enumerate(zip(*self._rooms, strict=True)):
            self._natural.turn(layer, x, g, updating=updating)

    def _gradients(self) -> list[tuple[Tensor, Tensor]]:
        found = []
        for shape, x, g in zip(self._shapes, *self._rooms, strict=True):
            weight = product(g.T, x[:, : shape.inputs])[: shape.outputs]
            bias = product(g.T, x[:, shape.inputs : shape.inputs + 1])[: shape.outputs]
            found.append((weight, bias.view(-1)))
        return found

    def __call__(self) -> None:
        """One step."""
        updating = self._t <= 10 or (self._t - 10) % ESTIMATION.update_period == 0
        self._t += 1
        self._passes.replay()
        if self._beside is not None and self._was:
            torch.cuda.current_stream().wait_event(self._followed)
        (self._updating if updating else self._step).replay()
        if updating and self._beside is None:
            self._follow.replay()
        elif updating and self._beside is not None:
            self._beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._beside):
                self._follow.replay()
                self._followed.record()
        self._was = updating

    def parts(self) -> list[tuple[str, Step]]:
        """What a step is made of, to be timed apart."""
        return [
            ("passes", self._passes.replay),
            ("natural gradients and step", self._step.replay),
            ("the same, updating", self._updating.replay),
            ("follow", self._follow.replay),
        ]

    def finite(self) -> bool:
        """Whether the parameters are still numbers."""
        return all(bool(p.isfinite().all()) for p in self._w.all)


def first_estimates(
    shapes: list[LayerShape], inputs: list[Tensor], derivatives: list[Tensor]
) -> list[dict[Side, FisherEstimate]]:
    """Of a first minibatch."""
    found = []
    for shape, x, g in zip(shapes, inputs, derivatives, strict=True):
        weight = torch.empty(shape.outputs, shape.inputs, device="meta")
        ones = functional.pad(x.float(), (0, 1), value=1.0)
        rows = {Side.INPUT: ones, Side.OUTPUT: g[:, : shape.outputs].float() * len(g)}
        eta = 1.0 - math.exp(-len(x) / ESTIMATION.num_samples_history)
        found.append(
            {s: FisherEstimate.first(rows[s], ESTIMATION.rank(s, weight), eta) for s in Side}
        )
    return found


def ordinary(
    shape: Shape, device: torch.device
) -> tuple[nn.Module, Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """A model, its data and its loss under autocast."""
    hidden = [shape.hidden] * shape.layers
    model = DNN(inputs=shape.inputs, outputs=shape.outputs, hidden=hidden).to(device)
    x = torch.randn(shape.rows, shape.inputs, device=device)
    y = torch.randint(0, shape.outputs, (shape.rows,), device=device)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return functional.cross_entropy(model(x), y)

    return model, x, y, loss_of


# The table.


def seconds(step: Step, steps: int) -> float:
    """Of one step, over some."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def main(blocks: int) -> None:
    """Times rows in turns, block by block, and prints them; one that fails says why."""
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    shape = Shape()
    measure(
        blocks,
        {
            "SGD, autograd, as it comes": lambda: sgd_autograd(shape, device, fast=False),
            "SGD, autograd, compiled, captured": lambda: sgd_autograd(shape, device, fast=True),
            "SGD, by hand, compiled, captured": lambda: sgd_by_hand(shape, device),
            "ng-sgd, as it comes": lambda: shipped(shape, device),
            "ng-sgd, captured, update in line": lambda: Natural(shape, device, beside=False),
            "ng-sgd, captured, update beside": lambda: Natural(shape, device, beside=True),
            "ng-sgd, compiled, captured, beside": lambda: Natural(
                shape, device, beside=True, compiled=True
            ),
        },
    )


def measure(blocks: int, makers: dict[str, Callable[[], Step]]) -> None:
    """One table: medians, ratios within the same block, and the parts of ours."""
    steps: dict[str, Step] = {}
    for name, make in makers.items():
        began = time.perf_counter()
        try:
            step = make()
            seconds(step, 24)
            steps[name] = step
            told = f"ready after {time.perf_counter() - began:.0f} s"
        except Exception as error:  # nobody may be there to mend it: the other rows count
            told = f"{type(error).__name__}: {plain(error)}"
        print(f"  {name}: {told}", flush=True)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(blocks):
        for name, step in steps.items():
            times[name].append(seconds(step, 40))
    rivals = [mine for name, mine in times.items() if name.startswith("SGD")]
    fastest = [min(each) for each in zip(*rivals, strict=True)]
    for name, mine in times.items():
        ratios = sorted(a / b for a, b in zip(mine, fastest, strict=False)) or [0.0]
        low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
        print(
            f"  {name:36} {1e3 * statistics.median(mine):7.3f} ms, "
            f"{statistics.median(ratios):6.3f} of the fastest SGD (90% {low:.3f} to {high:.3f})",
            flush=True,
        )
    for name, step in steps.items():
        if isinstance(step, Natural):
            finite = step.finite()
            parts = [(part, seconds(work, 40)) for part, work in step.parts()]
            told = ", ".join(f"{part} {1e3 * t:.3f}" for part, t in parts)
            print(f"  {name}: {told} ms; parameters finite: {finite}", flush=True)


def plain(error: Exception) -> str:
    """An error in one line."""
    return " ".join(str(error).split())[:300]


def profile(rows: int = 40) -> None:
    """Prints the kernels of 16 steps of ours, the costliest first."""
    step = Natural(Shape(), torch.device("cuda"), beside=False)
    seconds(step, 24)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(16):
            step()
        torch.cuda.synchronize()
    averages = seen.key_averages()
    print(averages.table(sort_by="cuda_time_total", row_limit=rows, max_name_column_width=90))
