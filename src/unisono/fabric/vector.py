"""The only thing that strategies compute with: flat numbers, or a mere count of bytes."""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any, Protocol

import torch

from unisono.fabric.quantize import dequantize, quantize, quantized_bytes


class Precision(str, Enum):
    """Of numbers on their way."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    INT4 = "int4"
    ONE_BIT = "1bit"

    @property
    def bits(self) -> int | None:
        """Of a number's code, beside the scales; None where each number stands for itself."""
        return _BITS.get(self)


_BITS = {Precision.INT8: 8, Precision.INT4: 4, Precision.ONE_BIT: 1}


class Vector(Protocol):
    """A flat array of numbers in host memory.

    Strategies never touch torch: they use these operations, which hold for real numbers
    (``TensorVector``) and, where only time is simulated, for sizes (``SizeVector``).
    """

    @property
    def nbytes(self) -> int:
        """Bytes on the wire."""

    def __len__(self) -> int: ...

    def like(self) -> Vector:
        """A new vector of the same size; its values are not set."""

    def copy(self) -> Vector:
        """A new vector with the same values."""

    def slice(self, start: int, stop: int) -> Vector:
        """A view of a part: writing to it writes to the whole."""

    def assign(self, other: Any) -> None:
        """``self = other``."""

    def scale(self, factor: float) -> None:
        """``self = factor * self``."""

    def add(self, other: Any, factor: float = 1.0) -> None:
        """``self = self + factor * other``."""

    def difference(self, a: Any, b: Any) -> None:
        """``self = a - b``."""

    def encoded(self, precision: Precision) -> Vector:
        """As it travels in that precision: itself, or a new vector of fewer bytes."""

    def decoded(self, precision: Precision, like: Any) -> Vector:
        """The numbers of a vector that was encoded: as many as ``like`` has.

        Itself, where it holds them. What is computed from them and a vector of full precision has
        full precision.
        """

    def finite(self) -> bool:
        """Whether no value is infinite or not a number."""

    def equals(self, other: Any) -> bool:
        """Whether both are known to hold the same bytes."""

    def digest(self) -> str:
        """The same for vectors of the same bytes, and for no others."""

    def norm(self) -> float:
        """The Euclidean length."""


def encoded_nbytes(vector: Vector, precision: Precision) -> int:
    """Bytes of a vector on its way, without encoding it."""
    return SizeVector(len(vector), vector.slice(0, 1).nbytes).encoded(precision).nbytes


class TensorVector:
    """A vector over a flat, contiguous host tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def zeros(cls, count: int, dtype: torch.dtype = torch.float32) -> TensorVector:
        return cls(torch.zeros(count, dtype=dtype))

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    def __len__(self) -> int:
        return self.tensor.numel()

    def like(self) -> TensorVector:
        return TensorVector(torch.empty_like(self.tensor))

    def copy(self) -> TensorVector:
        return TensorVector(self.tensor.clone())

    def slice(self, start: int, stop: int) -> TensorVector:
        return TensorVector(self.tensor[start:stop])

    def assign(self, other: TensorVector) -> None:
        self.tensor.copy_(other.tensor)

    def scale(self, factor: float) -> None:
        self.tensor.mul_(factor)

    def add(self, other: TensorVector, factor: float = 1.0) -> None:
        self.tensor.add_(other.tensor, alpha=factor)

    def difference(self, a: TensorVector, b: TensorVector) -> None:
        torch.sub(a.tensor, b.tensor, out=self.tensor)

    def encoded(self, precision: Precision) -> TensorVector:
        """As it travels; in bfloat16 numbers of another type than float32 stay as they are."""
        if precision.bits is not None:
            return TensorVector(quantize(self.tensor, precision.bits))
        if precision is Precision.FLOAT32 or self.tensor.dtype is not torch.float32:
            return self
        return TensorVector(self.tensor.bfloat16())

    def decoded(self, precision: Precision, like: TensorVector) -> TensorVector:
        if precision.bits is None:
            return self
        numbers = dequantize(self.tensor, precision.bits, len(like), like.tensor.dtype)
        return TensorVector(numbers)

    def finite(self) -> bool:
        """Whether the sum is finite: one pass, no temporary.

        A sum that overflows although each value is finite is reported as not finite, too: such a
        model is lost anyway.
        """
        return bool(torch.isfinite(self.tensor.sum()))

    def equals(self, other: TensorVector) -> bool:
        """Whether both hold the same bytes: 0 and -0 are two values here."""
        return torch.equal(self.tensor.view(torch.uint8), other.tensor.view(torch.uint8))

    def digest(self) -> str:
        data = self.tensor.view(torch.uint8).numpy().data
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    def norm(self) -> float:
        return float(torch.linalg.vector_norm(self.tensor))


class SizeVector:
    """A vector that has a size and no values, for timing-only simulation."""

    __slots__ = ("count", "itemsize")

    def __init__(self, count: int, itemsize: int = 4) -> None:
        self.count = count
        self.itemsize = itemsize

    @property
    def nbytes(self) -> int:
        return self.count * self.itemsize

    def __len__(self) -> int:
        return self.count

    def like(self) -> SizeVector:
        return SizeVector(self.count, self.itemsize)

    copy = like

    def slice(self, start: int, stop: int) -> SizeVector:
        return SizeVector(max(0, min(stop, self.count) - start), self.itemsize)

    def assign(self, other: SizeVector) -> None:
        """Nothing: there are no values."""

    def scale(self, factor: float) -> None:
        """Nothing: there are no values."""

    def add(self, other: SizeVector, factor: float = 1.0) -> None:
        """Nothing: there are no values."""

    def difference(self, a: SizeVector, b: SizeVector) -> None:
        """Nothing: there are no values."""

    def encoded(self, precision: Precision) -> SizeVector:
        if precision.bits is not None:
            return SizeVector(quantized_bytes(self.count, precision.bits), 1)
        if precision is Precision.FLOAT32 or self.itemsize != 4:
            return self
        return SizeVector(self.count, 2)

    def decoded(self, precision: Precision, like: SizeVector) -> SizeVector:
        return self if precision.bits is None else like.like()

    def finite(self) -> bool:
        return True

    def equals(self, other: SizeVector) -> bool:
        """Never: values that nobody knows may differ."""
        return False

    def digest(self) -> str:
        """The size: models of a simulation begin alike."""
        return f"{self.count} x {self.itemsize}"

    def norm(self) -> float:
        """Nothing: there are no values."""
        return 0.0
