"""A model's parameters as one vector, and back.

The parameters stay where torch has them: a vector is a copy, made with one multi-tensor call. So
nothing breaks when the model moves to another device, when weights are tied or frozen, when
gradients are set to None, or when cuDNN lays recurrent weights out anew.

The vector holds all parameters and, after them, the floating-point buffers (the running statistics
of batch norm), in the order of the model, in float32 or, if the model has float64, in that; lower
precisions are exchanged in float32, so that a mean is not rounded more often than it must be.
Integers stay each learner's own, and so do buffers that are not finite when the learner is made:
such a one is a mask, not a statistic. Frozen parameters are in the vector, so that a newcomer gets
them, but no mean is written to them: it would change their last bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from unisono.errors import UserError
from unisono.fabric import TensorVector

_KEPT = 4
"""Vectors that are kept for reuse."""


class ModelStorage:
    """Reads and writes the parameters and buffers of a model, and its gradients."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._free: list[TensorVector] = []
        self._streams: _Streams | None = None
        self._count: int | None = None
        """How many numbers the parameters are, from the beginning of the run on."""
        for name, parameter in model.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise UserError(f"parameter {name} has no shape yet: run the model once first")
            if parameter.is_complex():
                raise UserError(f"parameter {name} is complex: keep its two parts as real numbers")
        self._masks = {
            name
            for name, buffer in model.named_buffers()
            if buffer.is_floating_point() and not bool(buffer.isfinite().all())
        }

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters, tied ones once."""
        found: list[torch.Tensor] = [p for p in self._model.parameters() if p.is_floating_point()]
        count = sum(p.numel() for p in found)
        if self._count not in (None, count):
            raise UserError(
                f"the model's parameters are {count} numbers, and were {self._count} when the run "
                "began: add and remove parameters before learner.draw()"
            )
        return found

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What is shared: parameters, then floating-point buffers."""
        return [*self.parameters, *(buffer for _, buffer in self._buffers())]

    @property
    def longest_vector(self) -> int:
        """Bytes of the longest vector that another member may send: states are several models."""
        return 16 * self.nbytes + (1 << 26)

    @property
    def nbytes(self) -> int:
        tensors = self.tensors
        return sum(t.numel() for t in tensors) * _dtype(tensors).itemsize

    def fingerprint(self) -> str:
        """A hash of names, shapes and dtype, which must be the same for all learners."""
        named = [*self._model.named_parameters(), *self._buffers()]
        text = repr([(name, tuple(t.shape)) for name, t in named] + [_dtype(self.tensors)])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def device(self) -> str:
        return str(self.tensors[0].device)

    def begin(self) -> None:
        """Refuses a model that is spread over devices; from now on its size may not change."""
        self._count = sum(p.numel() for p in self.parameters)
        devices = sorted({str(t.device) for t in self.tensors})
        if len(devices) > 1:
            raise UserError(
                f"the model is spread over {', '.join(devices)}: a learner has one device"
            )

    def new(self, count: int | None = None) -> TensorVector:
        tensors = self.tensors
        count = sum(t.numel() for t in tensors) if count is None else count
        dtype, pinned = _dtype(tensors), any(t.is_cuda for t in tensors)
        for place, vector in enumerate(self._free):
            tensor = vector.tensor
            if len(vector) == count and tensor.dtype == dtype and tensor.is_pinned() == pinned:
                return self._free.pop(place)
        return TensorVector(torch.empty(count, dtype=dtype, pin_memory=pinned))

    def recycle(self, vector: TensorVector) -> None:
        if len(self._free) < _KEPT:
            self._free.append(vector)

    def read(self, vector: TensorVector) -> Callable[[], None]:
        """Begins to copy the model into the vector; the returned function waits for it."""
        return self._out(vector, self.tensors)

    def write(self, vector: TensorVector, *, frozen: bool = False) -> None:
        tensors, values = self._in(vector, frozen=frozen)
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(tensors, values)

    def add(self, vector: TensorVector) -> None:
        tensors, values = self._in(vector, frozen=False)
        if tensors:
            with torch.no_grad():
                values = [v.to(t.dtype) for v, t in zip(values, tensors, strict=True)]
                torch._foreach_add_(tensors, values)

    def read_gradient(self) -> TensorVector:
        """The gradients as a vector; a missing one is -0.

        A sum is -0 only if all terms are, so the mean still shows which gradients all lack.
        """
        parameters = self.parameters
        vector = self.new(sum(p.numel() for p in parameters))
        if any(p.grad is not None and p.grad.layout is not torch.strided for p in parameters):
            raise UserError("sparse gradients are not supported: use sparse=False in the embedding")
        grads = [torch.full_like(p, -0.0) if p.grad is None else p.grad for p in parameters]
        self._out(vector, [grad.detach() for grad in grads])()
        return vector

    def add_gradient(self, total: TensorVector, factor: float) -> None:
        """Adds the gradients, times a factor, to a vector; a missing one adds nothing."""
        parameters = self.parameters
        pairs = zip(parameters, _views(total, parameters), strict=True)
        there = [(view, p.grad) for p, view in pairs if p.grad is not None]
        views, grads = [view for view, _ in there], [grad.detach() for _, grad in there]
        if views:
            near = [grad.to(views[0].device, views[0].dtype) for grad in grads]
            torch._foreach_add_(views, near, alpha=factor)

    def read_parameters(self) -> TensorVector:
        parameters = self.parameters
        vector = self.new(sum(p.numel() for p in parameters))
        self._out(vector, [p.detach() for p in parameters])()
        return vector

    def write_gradient(self, vector: TensorVector) -> None:
        """Sets the gradients; those that all learners lack become None."""
        parameters = self.parameters
        here, there = _views(vector, parameters), _views(_near(vector, parameters), parameters)
        grads, values = [], []
        with torch.no_grad():
            for parameter, value, near in zip(parameters, here, there, strict=True):
                if is_missing(value):
                    parameter.grad = None
                    continue
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                grads.append(parameter.grad)
                values.append(near)
            if grads:
                torch._foreach_copy_(grads, values)

    def update_begins(self) -> None:
        """CUDA: the update, on the current stream, waits for the snapshot that is under way."""
        if self._streams is not None:
            self._streams.update_begins()

    def update_ended(self) -> None:
        """CUDA: the next snapshot waits for this update."""
        if self._streams is not None:
            self._streams.update_ended()

    def _buffers(self) -> list[tuple[str, torch.Tensor]]:
        named = self._model.named_buffers()
        return [(n, b) for n, b in named if b.is_floating_point() and n not in self._masks]

    def _out(self, vector: TensorVector, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        if not any(t.is_cuda for t in tensors):
            with torch.no_grad():
                torch._foreach_copy_(_views(vector, tensors), list(tensors))
            return lambda: None
        if self._streams is None:
            self._streams = _Streams(tensors[0].device)
        return self._streams.read(vector, tensors)

    def _in(
        self, vector: TensorVector, *, frozen: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors to write to, and the vector's values for them, on their device."""
        parameters = self.parameters
        alone = len(vector) == sum(p.numel() for p in parameters)
        tensors = parameters if alone else self.tensors
        pairs = zip(tensors, _views(_near(vector, tensors), tensors), strict=True)
        wanted = [(t, v) for t, v in pairs if frozen or t.requires_grad or not _is_parameter(t)]
        return [t for t, _ in wanted], [v for _, v in wanted]


class _Streams:
    """Snapshots that overlap with computing on a GPU, ordered by two events."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._update_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._snapshot_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._update_done.record(torch.cuda.current_stream(device))

    def update_begins(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._snapshot_done)

    def update_ended(self) -> None:
        self._update_done.record(torch.cuda.current_stream(self._device))

    def read(self, vector: TensorVector, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        here = torch.cuda.Event()  # type: ignore[no-untyped-call]
        here.record(torch.cuda.current_stream(self._device))
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.no_grad(), torch.cuda.stream(self._stream):
            self._stream.wait_event(here)
            self._stream.wait_event(self._update_done)
            flat = torch.empty(len(vector), dtype=vector.tensor.dtype, device=self._device)
            torch._foreach_copy_(_views(TensorVector(flat), tensors), list(tensors))
            self._snapshot_done.record(self._stream)
            vector.tensor.copy_(flat, non_blocking=True)
            ready.record(self._stream)
        return ready.synchronize


def _dtype(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    wide = any(t.dtype == torch.float64 for t in tensors)
    return torch.float64 if wide else torch.float32


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def _near(vector: TensorVector, tensors: Sequence[torch.Tensor]) -> TensorVector:
    """The vector on the tensors' device; torch keeps pinned memory until it was copied."""
    if not any(t.is_cuda for t in tensors):
        return vector
    return TensorVector(vector.tensor.to(tensors[0].device, non_blocking=True))


def _views(vector: TensorVector, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    parts = torch.split(vector.tensor, [t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def is_missing(value: torch.Tensor) -> bool:
    """Whether a gradient is -0 everywhere; for most the first number tells."""
    if value.numel() == 0:
        return False
    first = value[(0,) * value.dim()]
    if float(first) != 0.0 or not bool(first.signbit()):
        return False
    return bool(((value == 0) & value.signbit()).all())
