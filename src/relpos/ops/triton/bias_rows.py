"""A bias as the kernels read it."""

from __future__ import annotations

import torch
from torch import Tensor

from . import launch
from .kernel_args import BIAS_MARGIN
from .kernels.bias_rows import bias_rows_kernel
from .tuning import TileShape, count_tiles

__all__ = ["bias_rows"]

_SHAPE = TileShape(256, 256, 4, 1)


def bias_rows(rows: Tensor, scale: float, *, over_scale: bool) -> Tensor:
    """`(h or 1, r)` in float32 with `BIAS_MARGIN` end rows more on either side.

    Args:
        rows: `(h or 1, r)`, contiguous, in logits.
        scale: of the products.
        over_scale: whether the bias is to be divided by it; finite numbers remain finite.
    """
    heads, count = rows.shape
    out = rows.new_empty((heads, count + 2 * BIAS_MARGIN), dtype=torch.float32)
    programs = heads * count_tiles(out.shape[1], _SHAPE.m)
    alike = rows.device, rows.dtype, rows.data_ptr() % 16
    with torch.cuda.device_of(rows):
        launch.run_programs(
            bias_rows_kernel, programs, rows, out, count, BIAS_MARGIN, scale, shape=_SHAPE,
            known=alike, OVER_SCALE=over_scale, BLOCK=_SHAPE.m,
        )  # fmt: skip
    return out
