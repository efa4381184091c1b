"""Rows of a table, whose gradient is summed in 32 bits at least, in a fixed order on every device.

Where offsets or positions select a row again and again, a sum of 16 bits would soon stop growing.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import embedding

from .offsets import row_indices
from .terms import OffsetTable

__all__ = ["adds_repeated_rows_in_any_order", "picked_rows", "summed_rows"]

_MOST_INDICES = 3072  # up to which torch sums in one order on a GPU


def summed_rows(
    table: OffsetTable, at: Int64[Tensor, "*offsets"], dtype: torch.dtype
) -> Float[Tensor, "..."]:
    """The rows of some offsets, `(h or 1, *offsets[, d])`.

    Args:
        table: any.
        at: offsets, in tokens; each may come several times.
        dtype: of the result.

    >>> summed_rows(OffsetTable(torch.tensor([[5, 6]]), 0), torch.tensor([-1, 1]), torch.float32)
    tensor([[5., 6.]])
    """
    index, inside = row_indices(table, at)
    picked = picked_rows(table.rows.to(dtype).transpose(0, 1), index).movedim(at.ndim, 0)
    if inside is None:
        return picked
    return picked.where(inside.unsqueeze(-1) if table.rows.ndim == 3 else inside, 0)


def picked_rows(
    rows: Float[Tensor, "r *width"], index: Int64[Tensor, "*at"]
) -> Float[Tensor, "..."]:
    """`rows[index]`: `(*at, *width)`, in the dtype of the rows.

    Args:
        rows: floating point, with one more axis at least.
        index: numbers of rows; each may come several times.

    >>> rows = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    >>> picked_rows(rows, torch.zeros(1000, dtype=torch.long)).sum().backward()
    >>> rows.grad.flatten()
    tensor([1000.,    0.], dtype=torch.bfloat16)
    """
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    # An embedding, whose gradient is summed in a fixed order, but for many on a GPU.
    flat = wide.flatten(1)
    if adds_repeated_rows_in_any_order(flat) and index.numel() > _MOST_INDICES:
        parts = [embedding(part, flat) for part in index.flatten().split(_MOST_INDICES)]
        picked = torch.cat(parts).unflatten(0, index.shape)
    else:
        picked = embedding(index, flat)
    if rows.ndim > 2:
        picked = picked.unflatten(-1, rows.shape[1:])
    return picked.to(rows.dtype)


def adds_repeated_rows_in_any_order(rows: Tensor) -> bool:
    """Whether the gradient of an embedding with more than `_MOST_INDICES` is not always the same.

    From torch 2.11 on it is added by atomics on a GPU, where few rows are picked often.
    """
    return rows.is_cuda
