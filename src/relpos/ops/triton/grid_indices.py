"""Where the tokens of a grid find their numbers, as small tensors of integers for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...offsets import grid_coordinates

__all__ = ["GridIndices"]


@dataclass(frozen=True)
class GridIndices:
    """The columns of the logits per axis and the entries of the joint bias, int32.

    Args:
        key_columns: `(axes, j)`: the column of a key's coordinate along an axis, where the
            coordinates of all axes stand side by side; -1 for tokens before the grid.
        query_columns: `(axes, i)`: the same for the queries' grid.
        key_joint_index: `(j,)`: the entry of the joint bias for a pair of tokens is
            `key_joint_index[j] - query_joint_index[i]`.
        query_joint_index: `(i,)`.
    """

    key_columns: Tensor
    query_columns: Tensor
    key_joint_index: Tensor
    query_joint_index: Tensor

    @classmethod
    def of(
        cls, shape: tuple[int, ...], query_shape: tuple[int, ...], prefix: int, device: torch.device
    ) -> GridIndices:
        """Those of grids `shape` of keys and `query_shape` of queries, after `prefix` tokens."""
        offset_0 = 0  # its entry of the joint bias
        for size in shape:
            offset_0 = offset_0 * (2 * size - 1) + size - 1
        key_columns, key_joint_index = _indices(shape, shape, prefix, device)
        query_columns, query_joint_index = _indices(query_shape, shape, prefix, device)
        return cls(key_columns, query_columns, key_joint_index, query_joint_index - offset_0)


def _indices(
    grid: tuple[int, ...], key_grid: tuple[int, ...], prefix: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The columns `(axes, tokens)`, and the tokens' parts `(tokens,)` of the joint bias's entry."""
    coordinates = grid_coordinates(torch.arange(prod(grid), device=device), grid)
    columns, first_column = [], 0
    entry = torch.zeros(prod(grid), dtype=torch.int64, device=device)
    for size, key_size, coordinate in zip(grid, key_grid, coordinates, strict=True):
        columns.append(coordinate + first_column)
        first_column += size
        # An entry's number is linear in the offsets: that of key minus that of query.
        entry = entry * (2 * key_size - 1) + coordinate
    off_grid = entry.new_full((len(grid), prefix), -1)
    return (
        torch.cat([off_grid, torch.stack(columns)], 1).int(),
        torch.cat([entry.new_zeros(prefix), entry]).int(),
    )
