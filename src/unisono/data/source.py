"""What a learner draws its examples from."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray


def checked(indices: NDArray[np.int64], count: int, what: str) -> NDArray[np.int64]:
    """The numbers of examples, contiguous; raises ``IndexError`` if one is not in [0, count)."""
    indices = np.ascontiguousarray(indices, dtype=np.int64)
    if len(indices) and (indices.min() < 0 or indices.max() >= count):
        raise IndexError(f"{what} {indices.min()}..{indices.max()} of {count}")
    return indices


class Source(Protocol):
    """A set of examples that can be gathered by number, in any order and any grouping.

    The numbers come from an `Order`, so a source holds no position and no randomness: the same
    indices give the same batch at any time on any learner.
    """

    def __len__(self) -> int:
        """How many examples there are."""

    def batch(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        """Gathers examples.

        Args:
            indices: The examples' numbers, each in [0, len).

        Returns:
            Tensors whose first dimension runs over `indices`; the last one is the target.
        """
