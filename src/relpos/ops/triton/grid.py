"""Where the tokens of a grid lie, as small tensors of integers for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...offsets import grid_coordinates

__all__ = ["GridPlan", "joint_chunks"]


@dataclass(frozen=True)
class GridPlan:
    """The places and lines of both sides (`call.py`), int32.

    Args:
        key_places: `(axes, j)`.
        query_places: `(axes, i)`.
        key_lines: `(j,)`.
        query_lines: `(i,)`; the number of the entry of offset 0 is taken off already.
    """

    key_places: Tensor
    query_places: Tensor
    key_lines: Tensor
    query_lines: Tensor

    @classmethod
    def of(
        cls, shape: tuple[int, ...], query_shape: tuple[int, ...], prefix: int, device: torch.device
    ) -> GridPlan:
        """The plan of grids `shape` of keys and `query_shape` of queries, after `prefix` tokens."""
        middle = 0
        for size in shape:
            middle = middle * (2 * size - 1) + size - 1
        key_places, key_lines = _tokens(shape, shape, prefix, device)
        query_places, query_lines = _tokens(query_shape, shape, prefix, device)
        return cls(key_places, query_places, key_lines, query_lines - middle)


def _tokens(
    grid: tuple[int, ...], shape: tuple[int, ...], prefix: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The places `(axes, tokens)` along each axis in turn, and the lines `(tokens,)`."""
    coordinates = grid_coordinates(torch.arange(prod(grid), device=device), grid)
    places, first = [], 0
    line = torch.zeros(prod(grid), dtype=torch.int64, device=device)
    for size, sides, coordinate in zip(grid, shape, coordinates, strict=True):
        places.append(coordinate + first)
        first += size
        # An entry's number is linear in the offsets: that of key minus that of query.
        line = line * (2 * sides - 1) + coordinate
    nowhere = line.new_full((len(grid), prefix), -1)
    return (
        torch.cat([nowhere, torch.stack(places)], 1).int(),
        torch.cat([line.new_zeros(prefix), line]).int(),
    )


def joint_chunks(shape: tuple[int, ...], n: int, device: torch.device) -> Tensor:
    """`(chunks, 3)` int32: offset in tokens, entry and count of up to `n` entries side by side."""
    sizes = [2 * size - 1 for size in shape]
    per_line = -(-sizes[-1] // n)
    chunk = torch.arange(prod(sizes[:-1]) * per_line, device=device)
    line, begin = chunk // per_line, chunk % per_line * n
    entry = line * sizes[-1] + begin
    count = (sizes[-1] - begin).clamp(max=n)
    # The offsets along the axes before the last, from the number of the line.
    tokens, stride = begin - (shape[-1] - 1), shape[-1]
    for size, many in zip(shape[-2::-1], sizes[-2::-1], strict=True):
        tokens = tokens + (line % many - (size - 1)) * stride
        line, stride = line // many, stride * size
    return torch.stack([tokens, entry, count], 1).int()
