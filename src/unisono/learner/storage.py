"""A model's parameters as one vector, and back.

The parameters stay where torch has them: a vector is a copy, made with one multi-tensor call. So
nothing breaks when the model moves to another device, when weights are tied or frozen, when
gradients are set to None, or when cuDNN lays recurrent weights out anew.

The vector holds all parameters and, after them, all floating-point buffers (the running statistics
of batch norm), in the order of the model, in float32 or, if the model has float64, in that; lower
precisions are exchanged in float32, so that a mean is not rounded more often than it must be.
Integer buffers stay each learner's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from unisono.events import UserError
from unisono.fabric import TensorVector


class ModelStorage:
    """Reads and writes the parameters and buffers of a model, and its gradients."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._free: list[TensorVector] = []
        for name, parameter in model.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise UserError(f"parameter {name} has no shape yet: run the model once first")
        self._streams: _Streams | None = None

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters, tied ones once."""
        return list(self._model.parameters())

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What is shared: parameters, then floating-point buffers."""
        buffers = [b for b in self._model.buffers() if b.is_floating_point()]
        return [*self.parameters, *buffers]

    def fingerprint(self) -> str:
        """Of names and shapes: the learners' models must be alike."""
        text = repr([(n, tuple(p.shape)) for n, p in self._model.named_parameters()])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def new(self, count: int | None = None) -> TensorVector:
        """A vector of the model's size; its values are not set."""
        tensors = self.tensors
        count = sum(t.numel() for t in tensors) if count is None else count
        for place, vector in enumerate(self._free):
            if len(vector) == count:
                return self._free.pop(place)
        wide = any(t.dtype == torch.float64 for t in tensors)
        dtype = torch.float64 if wide else torch.float32
        pinned = any(t.is_cuda for t in tensors)
        return TensorVector(torch.empty(count, dtype=dtype, pin_memory=pinned))

    def recycle(self, vector: TensorVector) -> None:
        """Gives a vector back that nobody uses any more."""
        if len(self._free) < 4:
            self._free.append(vector)

    def read(self, vector: TensorVector) -> Callable[[], None]:
        """Copies the model into the vector; it is there when the returned function has returned."""
        return self._out(vector, self.tensors)

    def write(self, vector: TensorVector) -> None:
        """Copies the vector into the model."""
        self._in(vector, self.tensors, add=False)

    def add(self, vector: TensorVector) -> None:
        """Adds the vector to the model."""
        self._in(vector, self.tensors, add=True)

    def read_gradient(self) -> TensorVector:
        """The gradients as a vector; a missing one is zero."""
        parameters = self.parameters
        vector = self.new(sum(p.numel() for p in parameters))
        _refuse_sparse(parameters)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self._out(vector, grads)()
        return vector

    def write_gradient(self, vector: TensorVector) -> None:
        """Sets the gradients; one that nobody has stays missing."""
        parameters = self.parameters
        with torch.no_grad():
            for parameter, part in zip(parameters, _views(vector, parameters), strict=True):
                if parameter.grad is None and bool(part.any()):
                    parameter.grad = torch.zeros_like(parameter)
        present = [p for p in parameters if p.grad is not None]
        pairs = zip(parameters, _views(vector, parameters), strict=True)
        values = [part for parameter, part in pairs if parameter.grad is not None]
        if present:
            with torch.no_grad():
                grads = [p.grad for p in present if p.grad is not None]
                torch._foreach_copy_(grads, values, non_blocking=False)

    def update_begins(self) -> None:
        """CUDA: the update, on the current stream, waits for the snapshot that is under way."""
        if self._streams is not None:
            self._streams.update_begins()

    def update_ended(self) -> None:
        """CUDA: the next snapshot waits for this update."""
        if self._streams is not None:
            self._streams.update_ended()

    def _out(self, vector: TensorVector, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        if not any(t.is_cuda for t in tensors):
            with torch.no_grad():
                torch._foreach_copy_(_views(vector, tensors), list(tensors))
            return lambda: None
        if self._streams is None:
            self._streams = _Streams(tensors[0].device)
        return self._streams.read(vector, tensors)

    def _in(self, vector: TensorVector, tensors: Sequence[torch.Tensor], *, add: bool) -> None:
        with torch.no_grad():
            values = _views(vector, tensors)
            if not add:
                torch._foreach_copy_(list(tensors), values, non_blocking=True)
                return
            if any(t.is_cuda for t in tensors):
                flat = vector.tensor.to(tensors[0].device, non_blocking=True)
                values = _views(TensorVector(flat), tensors)
            values = [v.to(t.dtype) for v, t in zip(values, tensors, strict=True)]
            torch._foreach_add_(list(tensors), values)


class _Streams:
    """Snapshots beside computing on a GPU: ordered by two events, nothing waits on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._update_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._snapshot_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._update_done.record(torch.cuda.current_stream(device))
        self._flat: torch.Tensor | None = None

    def update_begins(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._snapshot_done)

    def update_ended(self) -> None:
        self._update_done.record(torch.cuda.current_stream(self._device))

    def read(self, vector: TensorVector, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        current = torch.cuda.current_stream(self._device)
        here = torch.cuda.Event()  # type: ignore[no-untyped-call]
        here.record(current)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.no_grad(), torch.cuda.stream(self._stream):
            self._stream.wait_event(here)
            self._stream.wait_event(self._update_done)
            if self._flat is None or self._flat.numel() != len(vector):
                kind = vector.tensor.dtype
                self._flat = torch.empty(len(vector), dtype=kind, device=self._device)
            torch._foreach_copy_(_views(TensorVector(self._flat), tensors), list(tensors))
            self._snapshot_done.record(self._stream)
            vector.tensor.copy_(self._flat, non_blocking=True)
            ready.record(self._stream)
        return ready.synchronize


def _views(vector: TensorVector, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    parts = torch.split(vector.tensor, [t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def _refuse_sparse(parameters: Sequence[torch.Tensor]) -> None:
    if any(p.grad is not None and p.grad.is_sparse for p in parameters):
        raise UserError("sparse gradients are not supported: use sparse=False in the embedding")
