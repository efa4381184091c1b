"""Which coordinates a grid's tokens have, as numbers that kernels multiply with."""

from __future__ import annotations

import torch
from torch import Tensor

from . import launch
from .kernel_args import TokenTensor
from .kernels.grid_products import marks_kernel
from .tuning import TileShape, count_tiles, next_power_of_two

__all__ = ["grid_marks"]

_SHAPE = TileShape(64, 64, 4, 1)


def grid_marks(coordinates: Tensor, count: int, dtype: torch.dtype) -> TokenTensor:
    """`(tokens, s)` for all sequences and heads: 1 for a token's coordinates, 0 elsewhere.

    Args:
        coordinates: `(axes, tokens)` int32, numbered through over all axes; -1 off the grid.
        count: of the coordinates; there are as many columns, up to a power of two, 16 at least.
        dtype: of the marks.
    """
    axes, tokens = coordinates.shape
    columns = next_power_of_two(max(count, 16))
    marks = coordinates.new_empty((tokens, columns), dtype=dtype)
    with torch.cuda.device_of(coordinates):
        launch.run_programs(
            marks_kernel, count_tiles(tokens, _SHAPE.m), coordinates, marks, tokens, shape=_SHAPE,
            known=(coordinates.device, coordinates.data_ptr() % 16, dtype), AXES=axes, M=_SHAPE.m,
            S=columns,
        )  # fmt: skip
    return TokenTensor(marks, 0, 0, columns)
