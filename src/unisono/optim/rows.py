"""Which layers are affine maps of rows, and where the rows of their minibatches are."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.models.aligned_linear import AlignedLinear

Affine = nn.Linear | nn.Conv1d
"""The layers whose weight gradient is a sum over rows of (output derivative)' (input)."""


_FORWARDS = (nn.Linear.forward, AlignedLinear.forward, nn.Conv1d.forward)


def why_not(module: nn.Module) -> str:
    """Returns why a module's parameters cannot be preconditioned; nothing where they can be."""
    if isinstance(module, nn.RNNBase):
        return "its fused kernel does not expose the derivatives of its gates"
    if not isinstance(module, Affine):
        return "not a linear layer or a 1-d convolution"
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "attention uses its weight without it"
    if type(module).forward not in _FORWARDS:
        return "it has a forward of its own"
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        return "its weight is computed from other parameters"
    if isinstance(module, nn.Conv1d) and module.groups != 1:
        return "it has groups"
    return ""


def input_rows(module: Affine, x: Tensor) -> Tensor:
    """Views the inputs of a layer as rows: the inputs of each place where it was applied.

    A linear layer is applied once for all dimensions but the last. A convolution is a linear
    layer that is applied at each output frame, to the C channels of the K frames under its
    kernel; its weight, outputs x C x K, fixes their order in a row.

    Args:
        module: The layer.
        x: What it was given.

    Returns:
        N x inputs, or batch x frames x C x K; of a convolution without padding a view, whose
        rows overlap in memory.
    """
    if isinstance(module, nn.Linear):
        return x.reshape(-1, x.shape[-1])
    x = x if x.dim() == 3 else x.unsqueeze(0)
    pad = module._reversed_padding_repeated_twice
    if any(pad):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = functional.pad(x, pad, mode=mode)
    span = module.dilation[0] * (module.kernel_size[0] - 1) + 1
    windows = x.unfold(2, span, module.stride[0])[..., :: module.dilation[0]]
    return windows.transpose(1, 2)


def output_rows(module: Affine, derivative: Tensor) -> Tensor:
    """Views the derivative with respect to a layer's output as rows, in the same order."""
    if isinstance(module, nn.Linear):
        return derivative.reshape(-1, derivative.shape[-1])
    derivative = derivative if derivative.dim() == 3 else derivative.unsqueeze(0)
    return derivative.transpose(1, 2)


class RowBuffer:
    """Memory for the rows of one layer at a time, kept from layer to layer and step to step.

    Fresh memory costs a page fault every 4 kB, which is more than the rows cost to write; and
    what the last layer used is still in the cache.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def gather(
        self,
        views: list[Tensor],
        width: int,
        dtype: torch.dtype,
        *,
        ones: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Copies rows together, unless they are already.

        Args:
            views: Where the rows are, as `input_rows` and `output_rows` return them.
            width: Numbers in a row.
            dtype: What to copy to.
            ones: Whether a column of ones follows.

        Returns:
            The rows, N x width or N x (width + 1), not to be written to; and memory of that shape,
            valid until the next call, where to put what is computed from them. If they were copied,
            both are the same.
        """
        count = sum(view.numel() for view in views) // width
        stride = -(-(width + ones) // 16) * 16  # whole cache lines: products like aligned rows
        needed, device, kept = count * stride, views[0].device, self._memory
        if len(kept) < needed or kept.dtype != dtype or kept.device != device:
            self._memory = torch.empty(needed, dtype=dtype, device=device)
        rows = self._memory[:needed].view(count, stride)
        into = rows[:, : width + ones]
        if not ones and len(views) == 1 and _is_matrix(views[0], dtype):
            return views[0], into
        copy_rows(views, width, rows)
        if ones:
            rows[:, width] = 1.0
        return into, into


def _is_matrix(view: Tensor, dtype: torch.dtype) -> bool:
    return view.dim() == 2 and view.dtype == dtype and view.is_contiguous()


def copy_rows(views: list[Tensor], width: int, rows: Tensor) -> None:
    """Copies rows, each `width` numbers, one view after the other, to the front of `rows`."""
    at = 0
    for view in views:
        some = view.numel() // width
        _copy(view, rows[at : at + some, :width].view(view.shape))
        at += some


def _copy(rows: Tensor, into: Tensor) -> None:
    """Copies rows to rows of the same shape, eight bytes at a time where their layout allows it.

    Where rows are not one block of memory, a GPU copies number by number, which takes four times
    as long for the narrow ones.
    """
    if rows.dtype == into.dtype and _in_words(rows) and _in_words(into):
        rows, into = rows.view(torch.int64), into.view(torch.int64)
    into.copy_(rows)


def _in_words(rows: Tensor) -> bool:
    """Whether each row consists of aligned words of eight bytes."""
    size = rows.element_size()
    *outer, inner = rows.stride()
    places = (rows.shape[-1], rows.storage_offset(), *outer)
    return inner == 1 and not any(n * size % 8 for n in places) and rows.data_ptr() % 8 == 0
