"""The natural gradient of layers on a GPU: Fisher estimates stay there, in one batch."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from unisono.errors import UserError
from unisono.optim.fisher import FisherEstimate
from unisono.optim.fisher_batch import LEAST, LEAST_BFLOAT16, FisherBatch, padded, product
from unisono.optim.garbage import no_collections
from unisono.optim.natural_gradient import checked_state, update_weight, updates
from unisono.optim.preconditioner import (
    FisherOptions,
    Gradients,
    Side,
    no_rows,
    row_count,
    row_dtype,
)
from unisono.optim.rows import copy_rows

CAPTURE_AFTER = 3  # minibatches of one shape after which a layer's work is captured
CAPTURED_SHAPES = 2  # of each layer, since each keeps memory: the usual one, the last of an epoch

Work = Callable[[], None]
Shape = tuple[int, torch.dtype]
"""How many rows a minibatch has for a layer, and the dtype that they are multiplied in."""


def captured(work: Work, stream: torch.cuda.Stream | None = None) -> Work:
    """Returns the work as a CUDA graph; it is run three times before, which must do no harm.

    Other threads may use the device meanwhile: only what this thread does is captured.

    Args:
        work: What to capture. It is kept alive with the graph, which uses its tensors.
        stream: Where to capture. Graphs that are replayed beside each other need a stream each,
            since cuBLAS has one workspace a stream.
    """
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with (
        no_collections(),
        torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
    ):
        work()

    def replay(_keep: Work = work) -> None:
        graph.replay()

    return replay


class DeviceEstimate:
    """The Fisher estimate of one side of a layer: its index in a `FisherBatch`, and its t.

    Attributes:
        frozen: Set it to stop updating the estimate.
    """

    def __init__(
        self,
        batch: FisherBatch,
        index: int,
        flush: Callable[[], None],
        *,
        dim: int,
        rank: int,
        period: int,
    ) -> None:
        """Starts without an estimate, whatever the batch has at this index.

        Args:
            batch: Of all estimates.
            index: Of this one.
            flush: Applies pending updates.
            dim: Numbers in a row.
            rank: Of the estimate.
            period: Minibatches from one update to the next.
        """
        self.frozen = False
        self._batch, self._index, self._flush = batch, index, flush
        self._dim, self._rank, self._period = dim, rank, period
        self._t = 0
        self._started = False

    @property
    def needs_rows(self) -> bool:
        """Whether there is no estimate yet; rows of dimension 1 never have one."""
        return self._dim > 1 and not self._started

    def start(self, rows: Tensor, eta: float) -> None:
        """Makes the first estimate, from finite rows; waits for the device."""
        first = FisherEstimate.first(rows.double(), self._rank, eta)
        self._batch.load(self._index, first.basis, first.d, first.rho)
        self._started = True

    @property
    def is_due(self) -> bool:
        """Whether the next minibatch updates the estimate.

        Rows of dimension 1, which have none, follow the other side.
        """
        return self._dim == 1 or (updates(self._t, self._period) and not self.frozen)

    def count(self) -> None:
        """Counts one minibatch; rows of dimension 1 do not count."""
        self._t += self._dim > 1

    def state_dict(self) -> dict[str, Tensor | float]:
        """Returns the state as `OnlineNaturalGradient` does; waits for the device.

        d is the r x r core of the batch, not a diagonal, so that it is exactly what it was when it
        is loaded again.
        """
        basis, d, rho = torch.empty(0, 0), torch.empty(0), 0.0
        if self._started:
            self._flush()
            basis, d, rho = self._batch.estimate(self._index)
        return {"t": self._t, "frozen": self.frozen, "basis": basis, "d": d, "rho": rho}

    def load_state_dict(self, state: Mapping[str, Tensor | float]) -> None:
        """Continues from what `state_dict` returned, here or on another device.

        Raises:
            UserError: The state was made with another rank, or is not a state at all.
        """
        basis, d, rho = checked_state(state, self._rank)
        self._t = int(state["t"])
        self.frozen = bool(state["frozen"])
        self._started = len(basis) > 0
        if self._started:
            self._batch.load(self._index, basis, d, rho)


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A layer: its sizes, and its index in the batch: the input side's; the output side is next."""

    bias: Tensor | None
    inputs: int
    outputs: int
    index: int
    tail: Tensor
    """What follows the inputs in a row of x: a one for the bias, then zeros."""

    def dim(self, side: Side) -> int:
        """Numbers in a row, the one of the bias included."""
        return self.inputs + (self.bias is not None) if side is Side.INPUT else self.outputs

    def index_of(self, side: Side) -> int:
        return self.index + (side is Side.OUTPUT)


class DevicePreconditioner:
    """Computes [dW, db] = s_g s_x ghat' xhat for all layers with a `FisherBatch`.

    The rows of a layer are copied to padded matrices x and g, preconditioned there in place, and
    multiplied: [dW, db] = g'x. Estimates are updated for all layers at once in `after_step`; where
    gradients are accumulated over several backward passes, as soon as a layer with a pending update
    is seen again. The first minibatch, from which the estimates start, is the only one that makes
    the host wait. Any shape of a minibatch is possible at any time.

    **CUDA graphs.** The same work on the same memory is captured once a layer has seen
    `CAPTURE_AFTER` minibatches of one shape, and replayed whenever that shape comes: five launches
    a layer instead of a hundred. Other shapes, the last of an epoch for example, launch one by one.
    If capturing fails, all of them do, and a warning says so.

    **Precision.** Where autocast makes the derivatives bfloat16, rows are multiplied in bfloat16;
    elsewhere in float32, or in float64 where the weight is float64 or alpha is below 1.

    All code runs on any device; graphs are for CUDA.
    """

    def __init__(
        self,
        biases: Mapping[Tensor, Tensor | None],
        options: FisherOptions,
        *,
        mean: bool,
        capture: Callable[[Work], Work] | None = None,
    ) -> None:
        """Allocates the estimates of all layers.

        Args:
            biases: The bias of each weight; all on one device.
            options: Ranks, history and smoothing.
            mean: Whether the derivatives are those of a mean over the rows.
            capture: Makes a graph of work; by default `captured` on CUDA, nothing elsewhere.
        """
        self.device = next(iter(biases)).device
        self._options, self._mean = options, mean
        self._capture = captured if capture is None and self.device.type == "cuda" else capture
        self._layers: dict[Tensor, _Layer] = {}
        sizes: list[tuple[int, int]] = []
        for weight, bias in biases.items():
            outputs, inputs = weight.flatten(1).shape
            columns = padded(inputs + (bias is not None)) - inputs
            tail = torch.zeros(columns, device=self.device)
            tail[:1] = float(bias is not None)
            layer = _Layer(bias=bias, inputs=inputs, outputs=outputs, index=len(sizes), tail=tail)
            self._layers[weight] = layer
            sizes += [(layer.dim(side), options.rank(side, weight)) for side in Side]
        self._batch = FisherBatch(
            sizes,
            num_samples_history=options.num_samples_history,
            alpha=options.alpha,
            device=self.device,
        )
        self._pending: dict[Tensor, torch.dtype] = {}
        self._seen: Counter[tuple[Tensor, Shape]] = Counter()
        self._buffers: dict[tuple[Tensor, Shape], tuple[Tensor, Tensor]] = {}
        self._graphs: dict[tuple[object, ...], Work] = {}
        self.is_replayed = False
        """Whether a whole step is being captured, whose replays count instead."""

    def new_estimate(self, weight: Tensor, side: Side) -> DeviceEstimate:
        layer = self._layers[weight]
        return DeviceEstimate(
            self._batch,
            layer.index_of(side),
            self._update,
            dim=layer.dim(side),
            rank=self._options.rank(side, weight),
            period=self._options.update_period,
        )

    def gradients(
        self,
        weight: Tensor,
        inputs: list[Tensor],
        derivatives: list[Tensor],
        estimates: Mapping[Side, DeviceEstimate],
    ) -> Gradients:
        layer = self._layers[weight]
        count = row_count(weight, derivatives)
        if count == 0:
            return no_rows(weight, layer.bias)
        if weight.device != self.device:
            raise UserError(
                f"ng-sgd: the model was on {self.device} when the optimizer was made and is on "
                f"{weight.device} now; make the optimizer after moving the model"
            )
        if weight in self._pending:
            self._update()
        shape = count, row_dtype(weight, derivatives, self._options)
        with torch.autocast(self.device.type, enabled=False):
            x, g = self._buffers.get((weight, shape)) or self._new_rows(layer, shape)
            copy_rows(inputs, layer.inputs, x)
            copy_rows(derivatives, layer.outputs, g)
            if self._start(layer, x, g, estimates):
                updating = all(estimate.is_due for estimate in estimates.values())
                self._precondition(weight, shape, x, g, updating)
                for estimate in estimates.values() if not self.is_replayed else ():
                    estimate.count()
            gradient = product(g.T, x[:, : layer.inputs])[: layer.outputs].view(weight.shape)
            if layer.bias is None:
                return gradient.to(weight.dtype), None
            ones = x[:, layer.inputs : layer.inputs + 1]
            shift = product(g.T, ones)[: layer.outputs].view(-1)
        return gradient.to(weight.dtype), shift.to(layer.bias.dtype)

    def after_step(self) -> None:
        """Updates the estimates, and captures the work of layers whose shape has recurred."""
        self._update()
        if self._capture is None:
            return
        try:
            for weight, shape in [key for key, n in self._seen.items() if n >= CAPTURE_AFTER]:
                del self._seen[weight, shape]
                if sum(owner is weight for owner, _ in self._buffers) < CAPTURED_SHAPES:
                    self._capture_layer(weight, shape)
        except RuntimeError as error:
            self._capture = None
            self._buffers.clear()
            self._graphs.clear()
            self._batch.discard_pending()
            reason = str(error).split("\n")[0]
            warnings.warn(f"ng-sgd runs more slowly, without CUDA graphs: {reason}", stacklevel=3)

    def leave_capturing(self) -> None:
        """Captures nothing any more: somebody else captures whole steps."""
        self._capture = None
        self._buffers.clear()
        self._graphs.clear()

    def _new_rows(self, layer: _Layer, shape: Shape) -> tuple[Tensor, Tensor]:
        """Returns memory for x and g of a minibatch."""
        count, dtype = shape
        columns = [self._batch.columns(layer.index_of(side)) for side in Side]
        x, g = (torch.empty(count, n, dtype=dtype, device=self.device) for n in columns)
        return x, g

    def _start(
        self, layer: _Layer, x: Tensor, g: Tensor, estimates: Mapping[Side, DeviceEstimate]
    ) -> bool:
        """Starts estimates that are not there yet; False where the rows are not finite."""
        rows = {
            side: r for side, r in ((Side.INPUT, x), (Side.OUTPUT, g)) if estimates[side].needs_rows
        }
        if not rows:
            return True
        _pad(layer, x, g)
        if not all(math.isfinite(float(r.double().norm())) for r in rows.values()):
            return False
        eta = update_weight(len(x), self._options.num_samples_history)
        for side, own in rows.items():
            factor = float(len(g)) if self._mean and side is Side.OUTPUT else 1.0
            estimates[side].start(own[:, : layer.dim(side)].double() * factor, eta)
        return True

    def _precondition(
        self, weight: Tensor, shape: Shape, x: Tensor, g: Tensor, updating: bool
    ) -> None:
        """Preconditions x and g in place, by a graph where there is one."""
        graph = self._graphs.get((weight, shape, updating))
        if graph is not None:
            graph()
        else:
            self._precondition_rows(self._layers[weight], x, g, updating)
            self._seen[weight, shape] += 1
        if updating:
            self._pending[weight] = shape[1]

    def _precondition_rows(self, layer: _Layer, x: Tensor, g: Tensor, updating: bool) -> None:
        _pad(layer, x, g)
        factor = float(len(g)) if self._mean else 1.0
        batch = self._batch
        scale_g = batch.precondition(
            layer.index_of(Side.OUTPUT), g, factor=factor, updating=updating
        )
        scale_x = batch.precondition(layer.index_of(Side.INPUT), x, updating=updating)
        x.mul_(scale_g * scale_x)

    def _update(self) -> None:
        """Updates the estimates of all layers that have an update pending."""
        if not self._pending:
            return
        narrow = set(self._pending.values()) == {torch.bfloat16}
        least = LEAST_BFLOAT16 if narrow else LEAST
        graph = self._graphs.get((least, len(self._batch.dtypes)))
        if graph is not None:
            graph()
        else:
            self._batch.update(least)
        self._pending.clear()

    def _capture_layer(self, weight: Tensor, shape: Shape) -> None:
        """Captures the work of one layer on minibatches of one shape, and the update of all."""
        assert self._capture is not None
        layer = self._layers[weight]
        x, g = (rows.zero_() for rows in self._new_rows(layer, shape))
        for updating in (False, True):
            work = partial(self._precondition_rows, layer, x, g, updating)
            self._graphs[weight, shape, updating] = self._capture(work)
        self._batch.discard_pending()
        least = LEAST_BFLOAT16 if shape[1] is torch.bfloat16 else LEAST
        key = least, len(self._batch.dtypes)
        if key not in self._graphs:
            self._graphs[key] = self._capture(partial(self._batch.update, least))
        self._buffers[weight, shape] = x, g


def _pad(layer: _Layer, x: Tensor, g: Tensor) -> None:
    """Fills the columns behind the rows: ones for the bias, then zeros.

    At each minibatch: memory may be new, and a minibatch that was not finite leaves NaN there.
    """
    x[:, layer.inputs :].copy_(layer.tail)
    g[:, layer.outputs :].zero_()
