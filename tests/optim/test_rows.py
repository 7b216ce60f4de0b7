"""Rows are copied as they are, whatever their layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unisono.optim.rows import RowBuffer, copy_rows

COUNT = 6


def layouts(width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(width)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return [
        random(COUNT, width),
        random(COUNT, width + 8)[:, :width],
        random(COUNT, width + 1)[:, 1:],
        random(COUNT, 2 * width)[:, ::2],
        random(width, COUNT).T,
        random(1, width).expand(COUNT, width),
        random(COUNT + width).unfold(0, width, 1)[:COUNT],
        random(2, COUNT // 2, width),
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 10, 16, 40])
def test_rows_of_every_layout(width: int, dtype: torch.dtype) -> None:
    for view in layouts(width):
        for rows in (torch.zeros(COUNT, width + 8, dtype=dtype), torch.zeros(COUNT, width + 1)):
            copy_rows([view.to(dtype)], width, rows)
            assert torch.equal(rows[:, :width], view.to(dtype).reshape(COUNT, width).to(rows))
            assert not bool(rows[:, width:].any())


def test_what_is_not_a_number_is_copied_too() -> None:
    view = torch.tensor([[torch.nan, -0.0, torch.inf, 1.0]] * COUNT, dtype=torch.bfloat16)
    rows = torch.zeros(COUNT, 8, dtype=torch.bfloat16)
    copy_rows([view], 4, rows)
    assert torch.equal(rows[:, :4].view(torch.int16), view.view(torch.int16))


def test_rows_that_are_a_matrix_stay_where_they_are() -> None:
    buffer = RowBuffer()
    matrix = torch.randn(COUNT, 10)
    rows, into = buffer.gather([matrix], 10, torch.float32)
    assert rows is matrix and into.shape == matrix.shape
    into.zero_()
    assert bool(matrix.all())
    for views, dtype, ones in (
        ([matrix, matrix], torch.float32, False),
        ([matrix.T.contiguous().T], torch.float32, False),
        ([matrix], torch.bfloat16, False),
        ([matrix], torch.float32, True),
    ):
        rows, into = buffer.gather(views, 10, dtype, ones=ones)
        assert rows is into and torch.equal(rows[:, :10], torch.cat(views).to(dtype))
        assert not ones or bool((rows[:, 10] == 1.0).all())
