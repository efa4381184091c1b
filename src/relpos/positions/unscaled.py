"""Rows for schemes whose position term has no scale, although the op scales what meets `keys`."""

from __future__ import annotations

from math import sqrt

from torch import Tensor

from ..errors import check_scale

__all__ = ["check_scale", "unscaled"]


def unscaled(rows: Tensor, scale: float | None, width: int) -> Tensor:
    """`rows / scale`, with the attention's default `1 / sqrt(width)` for None.

    Args:
        rows: any tensor that the op is to multiply by its scale.
        scale: the attention's scale.
        width: d, of one head.

    >>> import torch
    >>> unscaled(torch.ones(2), None, 16), unscaled(torch.ones(2), 0.5, 16)
    (tensor([4., 4.]), tensor([2., 2.]))
    """
    return rows * sqrt(width) if scale is None else rows / scale
