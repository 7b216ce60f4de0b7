"""Blocking calls are refused where a mode of torch would leak into another learner."""

from __future__ import annotations

import torch


class BlockingCallError(RuntimeError):
    """A blocking fabric call inside autograd, no_grad, autocast, a stream or a graph capture."""


def forbidden_context() -> str | None:
    """The mode of torch in which this thread is; None: it may wait."""
    if not torch.is_grad_enabled():
        return "torch.no_grad() or inference_mode()"
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "autocast"
    if torch._C._current_graph_task_id() != -1:
        return "backward() or one of its hooks"
    if torch.cuda.is_initialized() and not _is_on_default_stream():  # type: ignore[no-untyped-call]
        capturing = torch.cuda.is_current_stream_capturing()
        return "a CUDA graph capture" if capturing else "a CUDA stream context"
    return None


def _is_on_default_stream() -> bool:
    """Asked several times a step, so without an object for the stream: its handle is 0."""
    return torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()) == 0


def check_may_block() -> None:
    """Raises if this is no place to wait."""
    place = forbidden_context()
    if place is not None:
        raise BlockingCallError(
            f"learners must not wait for each other inside {place}: "
            "move the learner.backward/step/draw call outside of it"
        )
