"""What natural gradient costs on a GPU: `python benchmarks/natural_gradient.py --device cuda`.

462 -> 5 x 2048 -> 10217 (ReLU, cross entropy), minibatch 1024, bfloat16 products with float32
weights, period 4, ranks 20 and 80. Both steps are made as fast as we can: forward and backward are
written out, compiled, and the same for both, with the outputs padded to 10224; everything is
captured in CUDA graphs. SGD then multiplies the rows of each layer; ng-sgd has a `FisherBatch`
precondition them first, and bounds its step. The Fisher update runs in line or on a stream beside
the next forward and backward pass. "As it comes" is
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
from unisono.optim.device_preconditioner import captured
from unisono.optim.fisher import FisherEstimate
from unisono.optim.fisher_batch import LEAST_BFLOAT16, FisherBatch, product
from unisono.optim.natural_gradient import update_weight, updates

RANK_IN, RANK_OUT, PERIOD, HISTORY, ALPHA = 20, 80, 4, 2000.0, 4.0
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


def graph_of(work: Step) -> Step:
    """The work as a graph on a stream of its own: graphs run beside each other here."""
    return captured(work, torch.cuda.Stream())  # type: ignore[no-untyped-call]


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
    return graph_of(step)


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

    return graph_of(step)


def plain_sgd(
    parameters: list[Tensor],
    gradients: list[Tensor],
    rate: float | Tensor = RATE,
    not_finite: Tensor | None = None,
) -> None:
    """The fused step; not taken where `not_finite` is 1."""
    torch._fused_sgd_(
        parameters,
        gradients,
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=not_finite,
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


class BoundedStep:
    """The step of ng-sgd with all numbers on the device, so that it can be captured."""

    def __init__(self, layers: list[list[Tensor]], max_changes: list[float], total: float) -> None:
        device = layers[0][0].device
        self._layers, self._total = layers, total
        layer_of = torch.tensor([n for n, layer in enumerate(layers) for _ in layer])
        self._belongs = (layer_of == torch.arange(len(layers)).unsqueeze(1)).double().to(device)
        self._bounds = torch.tensor(max_changes, dtype=torch.float64, device=device)

    def take(self, gradients: list[tuple[Tensor, Tensor]]) -> None:
        """As `unisono.optim.max_change.take_step` has it."""
        norms = torch.stack(torch._foreach_norm([g for pair in gradients for g in pair]))
        lengths = RATE * (self._belongs @ norms.double().square()).sqrt()
        factors = (self._bounds / lengths).clamp(max=1.0)
        total = torch.linalg.vector_norm(factors * lengths)
        rates = RATE * factors * (self._total / total).clamp(max=1.0)
        not_finite = lengths.isfinite().all().logical_not().float()
        for layer, pair, rate in zip(self._layers, gradients, rates.float().unbind(), strict=True):
            plain_sgd(layer, list(pair), rate, not_finite)


class Natural:
    """Ours, captured: passes, step, updating step and Fisher update are a graph each."""

    def __init__(
        self, shape: Shape, device: torch.device, *, beside: bool, compiled: bool = False
    ) -> None:
        self._w = w = Weights(shape, device)
        sizes = [size for i, o in shape.sizes for size in ((i + 1, RANK_IN), (o, RANK_OUT))]
        self._batch = FisherBatch(sizes, num_samples_history=HISTORY, alpha=ALPHA, device=device)
        self._buffers = [
            torch.zeros(shape.rows, self._batch.columns(n), dtype=torch.bfloat16, device=device)
            for n in range(len(sizes))
        ]
        changes = [*[0.75] * (len(shape.sizes) - 1), 1.5]
        self._bounded = BoundedStep(w.layers, changes, 2.0)
        self._beside: Any = torch.cuda.Stream() if beside else None  # type: ignore[no-untyped-call]
        self._updated = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._fill()
        for index, (dim, rank) in enumerate(sizes):
            rows = self._buffers[index][:, :dim].double() * self._factor(index)
            first = FisherEstimate.first(rows, rank, update_weight(shape.rows, HISTORY))
            self._batch.load(index, first.basis, first.d, first.rho)
        passes = torch.compile(self._fill, dynamic=False)
        self._precondition(False)  # makes the batch's bfloat16 copies
        work = self._precondition
        precondition = torch.compile(work, dynamic=False) if compiled else work

        def step(updating: bool) -> None:
            precondition(updating)
            self._bounded.take(self._gradients())
            w.refresh()

        self._passes = graph_of(passes)
        self._step = graph_of(lambda: step(False))
        self._updating = graph_of(lambda: step(True))
        self._batch.discard_pending()
        self._update = graph_of(lambda: self._batch.update(LEAST_BFLOAT16))
        self._t, self._was = 0, False

    def _factor(self, index: int) -> float:
        """Derivatives are those of a mean; the estimates see those of a sum."""
        return float(self._w.shape.rows) if index % 2 else 1.0

    def _fill(self) -> None:
        """Forwards and backwards; inputs with ones and derivatives to the buffers."""
        w = self._w
        for n, (x, g) in enumerate(zip(*rows_of(w.x, w.y, w.narrow), strict=True)):
            inputs, derivatives = self._buffers[2 * n : 2 * n + 2]
            inputs[:, : x.shape[1]].copy_(x)
            inputs[:, x.shape[1]].fill_(1.0)
            derivatives[:, : g.shape[1]].copy_(g)

    def _precondition(self, updating: bool) -> None:
        scales = [
            self._batch.precondition(n, rows, factor=self._factor(n), updating=updating)
            for n, rows in enumerate(self._buffers)
        ]
        for n in range(0, len(scales), 2):
            self._buffers[n].mul_(scales[n] * scales[n + 1])

    def _gradients(self) -> list[tuple[Tensor, Tensor]]:
        found = []
        for n, (inputs, outputs) in enumerate(self._w.shape.sizes):
            x, g = self._buffers[2 * n : 2 * n + 2]
            weight = product(g.T, x[:, :inputs])[:outputs]
            bias = product(g.T, x[:, inputs : inputs + 1])[:outputs]
            found.append((weight, bias.view(-1)))
        return found

    def __call__(self) -> None:
        """One step."""
        updating = updates(self._t, PERIOD)
        self._t += 1
        self._passes()
        if self._beside is not None and self._was:
            torch.cuda.current_stream().wait_event(self._updated)
        (self._updating if updating else self._step)()
        if updating and self._beside is None:
            self._update()
        elif updating and self._beside is not None:
            self._beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._beside):
                self._update()
                self._updated.record()
        self._was = updating

    def parts(self) -> list[tuple[str, Step]]:
        """What a step is made of, to be timed apart."""
        return [
            ("passes", self._passes),
            ("natural gradients and step", self._step),
            ("the same, updating", self._updating),
            ("Fisher update", self._update),
        ]

    def finite(self) -> bool:
        """Whether the parameters are still numbers."""
        return all(bool(p.isfinite().all()) for p in self._w.all)


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
