"""Where the tokens of a grid find their numbers, as small tensors of integers for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...offsets import grid_coordinates
from ..locality import Window
from .kept import kept

__all__ = ["GridIndices", "grid_indices"]


@dataclass(frozen=True)
class GridIndices:
    """The tokens' coordinates and their parts of the joint bias's entries, int32.

    The coordinates of all axes are numbered through, one axis after another, as the columns of
    logits per axis are.

    Args:
        key_coordinates: `(axes, j)`: the number of a key's coordinate along an axis; -1 for tokens
            before the grid.
        query_coordinates: `(axes, i)`: the same on the queries' grid.
        key_joint_index: `(j,)`: the entry of the joint bias for a pair of tokens is
            `key_joint_index[j] - query_joint_index[i]`.
        query_joint_index: `(i,)`.
        coordinate_windows: `(axes, i, 2)`: the first and the last coordinate of a key that a query
            may see along an axis; all of them for tokens before the grid. None without windows.
        window_ranges: `(1, i, 2)`: the first key in all windows of a query, and the one after the
            last: between them are others as well. None without windows.
    """

    key_coordinates: Tensor
    query_coordinates: Tensor
    key_joint_index: Tensor
    query_joint_index: Tensor
    coordinate_windows: Tensor | None = None
    window_ranges: Tensor | None = None


@kept
def grid_indices(
    key_grid: tuple[int, ...],
    query_grid: tuple[int, ...],
    prefix: int,
    windows: tuple[Window, ...],
    device: torch.device,
) -> GridIndices:
    """Those of two grids, each after `prefix` tokens; of one grid where there are windows."""
    offset_0 = 0  # its entry of the joint bias
    for size in key_grid:
        offset_0 = offset_0 * (2 * size - 1) + size - 1
    key_coordinates, key_joint_index = _indices(key_grid, key_grid, prefix, device)
    query_coordinates, query_joint_index = _indices(query_grid, key_grid, prefix, device)
    of_windows = _window_bounds(key_grid, prefix, windows, device) if windows else (None, None)
    return GridIndices(
        key_coordinates, query_coordinates, key_joint_index, query_joint_index - offset_0,
        *of_windows,
    )  # fmt: skip


def _indices(
    grid: tuple[int, ...], key_grid: tuple[int, ...], prefix: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The coordinates `(axes, tokens)`, and the tokens' parts `(tokens,)` of the bias's entries."""
    along_axes = grid_coordinates(torch.arange(prod(grid), device=device), grid)
    coordinates, first = [], 0
    entry = torch.zeros(prod(grid), dtype=torch.int64, device=device)
    for size, key_size, coordinate in zip(grid, key_grid, along_axes, strict=True):
        coordinates.append(coordinate + first)
        first += size
        # An entry's number is linear in the offsets: that of key minus that of query.
        entry = entry * (2 * key_size - 1) + coordinate
    off_grid = entry.new_full((len(grid), prefix), -1)
    return (
        torch.cat([off_grid, torch.stack(coordinates)], 1).int(),
        torch.cat([entry.new_zeros(prefix), entry]).int(),
    )


def _window_bounds(
    grid: tuple[int, ...], prefix: int, windows: tuple[Window, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """`coordinate_windows` and `window_ranges` of a grid."""
    along_axes = grid_coordinates(torch.arange(prod(grid), device=device), grid)
    bounds, first = [], 0
    begin = last = torch.zeros(prod(grid), dtype=torch.int64, device=device)
    for size, coordinate, window in zip(grid, along_axes, windows, strict=True):
        left, right = (size if side is None else min(side, size) for side in window)
        low, high = (coordinate - left).clamp(min=0), (coordinate + right).clamp(max=size - 1)
        bounds.append(torch.stack([low, high], 1) + first)
        first += size
        # A token's number grows with each coordinate.
        begin, last = begin * size + low, last * size + high
    # Tokens before the grid see all, and all see them.
    begin = torch.zeros_like(begin) if prefix else begin
    windows_on_grid = torch.stack(bounds)
    ranges_on_grid = torch.stack([begin, prefix + last + 1], 1).unsqueeze(0)
    return (
        _after_prefix(windows_on_grid, prefix, first - 1),
        _after_prefix(ranges_on_grid, prefix, prefix + prod(grid)),
    )


def _after_prefix(bounds: Tensor, prefix: int, end: int) -> Tensor:
    """`bounds (n, tokens, 2)` in int32 after `(0, end)` for each token before the grid."""
    of_prefix = bounds.new_zeros(bounds.shape[0], prefix, 2)
    of_prefix[..., 1] = end
    return torch.cat([of_prefix, bounds], 1).int()
