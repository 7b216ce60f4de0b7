"""Layers whose estimates have moved to the device, and what a step launches there in few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unisono.optim.fisher import FisherEstimate
from unisono.optim.layer import Estimation, Side
from unisono.optim.natural_gradient import OnlineNaturalGradient
from unisono.optim.resident import ResidentNaturalGradient, Shape, product
from unisono.optim.rows import copy_rows

Work = Callable[[], None]
Sides = dict[Side, OnlineNaturalGradient]


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A layer that moves in: its parameters, and the rows that its minibatches have as a rule."""

    weight: Tensor
    bias: Tensor | None
    rows: int

    @property
    def shape(self) -> Shape:
        """Of the layer."""
        outputs, inputs = self.weight.flatten(1).shape
        return Shape(inputs=inputs, outputs=outputs, bias=self.bias is not None)


def captured(work: Work) -> Work:
    """Returns the work as a CUDA graph; it is run a few times before, which must do no harm.

    Other threads may use the device meanwhile: only what this thread does is captured.
    """
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


class Residence:
    """Where layers live whose estimates are a `ResidentNaturalGradient`.

    A layer's rows are copied to memory of its own, made natural there by one graph, and multiplied:
    five launches instead of a hundred. `follow`, once for all layers, is one more. Minibatches of
    another size than usual take the same way without a graph.

    The layers' `OnlineNaturalGradient`s go on counting their minibatches, and `hand_back` brings
    their estimates up to date.
    """

    def __init__(
        self,
        layers: Sequence[Resident],
        estimation: Estimation,
        *,
        mean: bool,
        dtype: torch.dtype,
        capture: Callable[[Work], Work] = captured,
    ) -> None:
        """Captures; `move_in` brings the estimates.

        Args:
            layers: All on one device.
            estimation: Ranks, history and smoothing.
            mean: Whether the derivatives are those of a mean over the rows.
            dtype: What rows are multiplied in.
            capture: Makes a graph of work.
        """
        self.dtype, self.device = dtype, layers[0].weight.device
        self.layers = list(layers)
        self._places = {layer.weight: place for place, layer in enumerate(layers)}
        self._natural = ResidentNaturalGradient(
            [layer.shape for layer in layers],
            estimation,
            mean=mean,
            dtype=dtype,
            device=self.device,
        )
        self._buffers = [self._room(place, layer.rows) for place, layer in enumerate(layers)]
        self._turn = {
            (place, updating): capture(self._turning(place, updating))
            for place in range(len(layers))
            for updating in (False, True)
        }
        self._natural.forget()
        self._follow = capture(self._natural.follow)
        self._kept: set[int] = set()

    def __contains__(self, weight: Tensor) -> bool:
        return weight in self._places

    def move_in(self, sides: Callable[[Tensor], Sides]) -> None:
        """Takes over the estimates, which all layers must have."""
        self._kept.clear()
        self._natural.load([_estimates(sides(layer.weight)) for layer in self.layers])

    def hand_back(self, sides: Callable[[Tensor], Sides]) -> None:
        """Gives the layers' objects the estimates that they would have; waits for the device."""
        self.follow()
        for place, layer in enumerate(self.layers):
            for which, preconditioner in sides(layer.weight).items():
                preconditioner.use(self._natural.estimate(place, which))

    def follow(self) -> None:
        """Updates the estimates from what `gradients` has seen, if it has seen something."""
        if self._kept:
            self._follow()
            self._kept.clear()

    def gradients(
        self, weight: Tensor, inputs: list[Tensor], derivatives: list[Tensor], sides: Sides
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the natural gradients of a weight and its bias, as `NaturalProduct` does."""
        place = self._places[weight]
        layer, shape = self.layers[place], self.layers[place].shape
        if place in self._kept:
            self.follow()
        updating = all([preconditioner.count() for preconditioner in sides.values()])  # both count
        rows = sum(view.numel() for view in derivatives) // shape.outputs
        usual = rows == layer.rows
        x, g = self._buffers[place] if usual else self._room(place, rows)
        with torch.autocast(self.device.type, enabled=False):
            copy_rows(inputs, shape.inputs, x)
            copy_rows(derivatives, shape.outputs, g)
            if usual:
                self._turn[place, updating]()
            else:
                self._natural.turn(place, x, g, updating=updating)
            if updating:
                self._kept.add(place)
            gradient = product(g.T, x[:, : shape.inputs])[: shape.outputs].view(weight.shape)
            if layer.bias is None:
                return gradient, None
            shift = product(g.T, x[:, shape.inputs : shape.inputs + 1])[: shape.outputs].view(-1)
        return gradient, shift

    def _room(self, place: int, rows: int) -> tuple[Tensor, Tensor]:
        """Returns memory for the rows of both sides, padded with zeros."""
        shape = self.layers[place].shape
        x, g = (
            torch.zeros(rows, shape.padded(side), dtype=self.dtype, device=self.device)
            for side in Side
        )
        return x, g

    def _turning(self, place: int, updating: bool) -> Work:
        x, g = self._buffers[place]
        return lambda: self._natural.turn(place, x, g, updating=updating)


def _estimates(sides: Sides) -> dict[Side, FisherEstimate]:
    found = {side: preconditioner.estimate for side, preconditioner in sides.items()}
    return {side: fisher for side, fisher in found.items() if fisher is not None}
