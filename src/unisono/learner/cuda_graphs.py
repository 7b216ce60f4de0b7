"""Work on a GPU as CUDA graphs, which are replayed in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from unisono.optim.garbage import no_collections

Work = Callable[[], None]


class CudaGraphs:
    """Captures work of one learner; all of its graphs share one pool of memory.

    Graphs of one pool must not run at the same time, which those of one learner never do: they are
    replayed on the learner's own stream.
    """

    def __init__(self) -> None:
        self._pool: Any = None

    def can_capture(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether work on these tensors can be captured at all: they are all on a GPU."""
        return bool(tensors) and all(tensor.is_cuda for tensor in tensors)

    def capture(self, work: Work) -> Work:
        """Captures the work, without doing it; calling the result does it.

        Other threads may use the device meanwhile: only what this thread does is captured, and the
        backward passes that it begins.

        Raises:
            RuntimeError: the work waits for the device, or does something else that a graph cannot.
        """
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with (
                no_collections(),
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                work()
        except RuntimeError:
            _clean_up(stream, self._pool)
            raise
        return graph.replay


def _clean_up(stream: torch.cuda.Stream, pool: Any) -> None:
    """Undoes what torch leaves behind where a capture fails.

    Its own stream is current, memory still comes from the pool, and the random generator waits for
    the end of a capture, which a second one brings.
    """
    torch.cuda.set_stream(stream)
    with suppress(RuntimeError):  # newer versions of torch have done it
        torch._C._cuda_endAllocateToPool(stream.device_index, pool)
    with (
        no_collections(),
        torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"),
    ):
        torch.zeros(1, device=stream.device)
