"""Bare PyTorch loops of gpu.py's table: nothing but forward, backward and SGD, on fixed inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

MOMENTUM, RATE = 0.9, 0.001
Step = Callable[[], None]


@dataclass(frozen=True)
class Shape:
    """A model and its minibatch.

    Attributes:
        hidden: Units of each layer; of a BLSTM in both directions together.
        rows: Frames, or sequences, of a minibatch.
        chunk: Frames of a sequence that are classified; 0: frames one by one, a DNN.
        delay: Frames of a sequence that are heard besides.
        bottleneck: Of a BLSTM; 0: it is no BLSTM.
    """

    hidden: tuple[int, ...]
    rows: int
    chunk: int = 0
    delay: int = 0
    bottleneck: int = 0
    dimension: int = 42
    context: int = 5
    states: int = 10217

    @property
    def frames(self) -> int:
        """Frames of a minibatch that are classified."""
        return self.rows * max(1, self.chunk)

    def build(self) -> nn.Module:
        """The plain model."""
        if self.chunk:
            return Recurrent(self)
        widths = [self.dimension * (2 * self.context + 1), *self.hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], self.states))

    def minibatch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets at random."""
        if self.chunk:
            x = torch.randn(self.rows, self.chunk + self.delay, self.dimension, device="cuda")
            return x, torch.randint(0, self.states, (self.rows, self.chunk), device="cuda")
        x = torch.randn(self.rows, self.dimension * (2 * self.context + 1), device="cuda")
        return x, torch.randint(0, self.states, (self.rows,), device="cuda")


class Recurrent(nn.Module):
    """`nn.LSTM` as it comes, then the states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        both = shape.bottleneck > 0
        units = shape.hidden[0] // (2 if both else 1)
        depth = len(shape.hidden)
        self.lstm = nn.LSTM(shape.dimension, units, depth, batch_first=True, bidirectional=both)
        self.bottleneck: nn.Module = nn.Identity()
        if both:
            self.bottleneck = nn.Linear(2 * units, shape.bottleneck)
        self.logits = nn.Linear(shape.bottleneck or units, shape.states)
        self.delay = shape.delay

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.logits(self.bottleneck(self.lstm(x)[0][:, self.delay :]))
        return logits


def eager(shape: Shape) -> Step:
    """As anybody would write it, with autocast to bfloat16 and a fused optimizer."""
    return _step_of(shape, compiled=False)


def captured(shape: Shape) -> Step:
    """The same as one CUDA graph; compiled, but for what cuDNN computes."""
    step = _step_of(shape, compiled=shape.chunk == 0)
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _step_of(shape: Shape, *, compiled: bool) -> Step:
    torch.manual_seed(0)
    model = shape.build().cuda()
    x, y = shape.minibatch()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())

    compute = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compute(x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def frames_a_second(shape: Shape, step: Step, blocks: int = 5, seconds: float = 0.4) -> float:
    """The median over blocks of steps."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    steps = max(3, int(seconds / max(time.perf_counter() - began, 1e-4)))
    rates = []
    for _ in range(blocks):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        rates.append(steps * shape.frames / (time.perf_counter() - began))
    return statistics.median(rates)


def peak() -> float:
    """FLOP/s of a large product of bfloat16 matrices of random numbers."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
    return 20 * 2 * 8192**3 / (time.perf_counter() - began)
