"""Which keys a query of a grid sees by windows and ranges along the axes, as kernels read it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...offsets import grid_coordinates
from ..locality import Window
from .cached_tensors import cached_tensors
from .call_traits import GridShape

__all__ = ["AxisWindows"]


@dataclass(frozen=True)
class AxisWindows:
    """The coordinates that queries see along each axis; tokens before the grid see all.

    Args:
        of_queries: `(b or 1, axes, i, 2)` int32: the first and the last coordinate of a key that a
            query may see along an axis, numbered through all axes as `GridIndices` has them.
        key_ranges: `(b or 1, i, 2)` int32: the first key that a query sees, and the one after the
            last: between them are others as well.
    """

    of_queries: Tensor
    key_ranges: Tensor

    @classmethod
    def of(
        cls,
        grid: GridShape,
        windows: tuple[Window, ...],
        axis_ranges: Tensor | None,
        device: torch.device,
    ) -> AxisWindows | None:
        """None where there is neither a window nor a range.

        Args:
            grid: the sizes.
            windows: of each axis, or empty.
            axis_ranges: as `Arguments` has them.
            device: where the kernels run.
        """
        if axis_ranges is not None:
            return _axis_windows(grid, windows, axis_ranges, device)
        return _by_windows_alone(grid, windows, device) if windows else None


@cached_tensors
def _by_windows_alone(
    grid: GridShape, windows: tuple[Window, ...], device: torch.device
) -> AxisWindows:
    return _axis_windows(grid, windows, None, device)


def _axis_windows(
    grid: GridShape,
    windows: tuple[Window, ...],
    axis_ranges: Tensor | None,
    device: torch.device,
) -> AxisWindows:
    queries, num_axes = grid.query_grid, len(grid.query_grid)
    ranges = [None] * num_axes if axis_ranges is None else axis_ranges.split(queries, 1)
    along_axes = grid_coordinates(torch.arange(prod(queries), device=device), queries)
    bounds, first = [], 0
    begin = last = torch.zeros((), dtype=torch.int64, device=device)
    is_empty = torch.zeros((), dtype=torch.bool, device=device)
    for size, coordinate, window, of_axis in zip(
        grid.key_grid, along_axes, windows or [(None, None)] * num_axes, ranges, strict=True
    ):
        left, right = (size if side is None else min(side, size) for side in window)
        # Queries on a grid of their own have no window, and coordinates beyond the keys'.
        low = torch.zeros_like(coordinate) if window[0] is None else coordinate - left
        high = torch.full_like(coordinate, size - 1) if window[1] is None else coordinate + right
        low, high = low.clamp(min=0)[None], high.clamp(max=size - 1)[None]
        if of_axis is not None:
            begins, ends = of_axis.clamp(0, size)[:, coordinate].unbind(-1)
            low, high = torch.maximum(low, begins), torch.minimum(high, ends - 1)
        bounds.append(torch.stack([low, high], -1) + first)
        first += size
        is_empty = is_empty | (low > high)
        # A token's number grows with each coordinate.
        begin, last = begin * size + low, last * size + high
    prefix = grid.prefix
    # Tokens before the grid see all, and all see them.
    begin = torch.zeros_like(begin) if prefix else begin.masked_fill(is_empty, 0)
    end = prefix + (last + 1).masked_fill(is_empty, 0)
    of_queries = torch.stack(bounds, 1)
    return AxisWindows(
        _after_prefix(of_queries, prefix, first - 1),
        _after_prefix(torch.stack([begin, end], -1), prefix, prefix + prod(grid.key_grid)),
    )


def _after_prefix(bounds: Tensor, prefix: int, end: int) -> Tensor:
    """`bounds (..., tokens, 2)` in int32 after `(0, end)` for each token before the grid."""
    of_prefix = bounds.new_zeros(*bounds.shape[:-2], prefix, 2)
    of_prefix[..., 1] = end
    return torch.cat([of_prefix, bounds], -2).int()
