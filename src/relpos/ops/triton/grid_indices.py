"""Where the tokens of a grid find their numbers, as small tensors of integers for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...offsets import grid_coordinates
from .cached_tensors import cached_tensors

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
    """

    key_coordinates: Tensor
    query_coordinates: Tensor
    key_joint_index: Tensor
    query_joint_index: Tensor


@cached_tensors
def grid_indices(
    key_grid: tuple[int, ...],
    query_grid: tuple[int, ...],
    prefix: int,
    device: torch.device,
) -> GridIndices:
    """The indices of two grids, each after `prefix` tokens."""
    offset_0 = 0  # its entry of the joint bias
    for size in key_grid:
        offset_0 = offset_0 * (2 * size - 1) + size - 1
    key_coordinates, key_joint_index = _indices(key_grid, key_grid, prefix, device)
    query_coordinates, query_joint_index = _indices(query_grid, key_grid, prefix, device)
    return GridIndices(
        key_coordinates, query_coordinates, key_joint_index, query_joint_index - offset_0
    )


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
