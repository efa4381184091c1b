"""A grid inside a block: numbers by coordinate, added to scores and summed out of weights.

Along one axis a query is dotted with only as many rows as the axis is long. So the term of a whole
grid is one short vector for each query and axis, `A_a[i, c]` (`axis_terms.py`), and

    s_ij += sum_a A_a[i, c_a(j)]        dA_a[i, c] = sum of dS_ij over the keys j with c_a(j) = c

where `c_a(j)` is the coordinate of key `j`: a broadcast over the block's scores seen as a grid, and
a sum over the other axes. Memory is `O(L (h + w))`. Likewise for a table that is dotted with the
keys, `D_a[j, c_a(i)]`, and for values, whose term needs the weights summed per coordinate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ...offsets import grid_coordinates
from .plan import Block

__all__ = ["GridBlocks", "add_joint_bias", "collect_joint_bias"]


@dataclass(frozen=True)
class GridBlocks:
    """The grid of one call.

    Args:
        key_grid: of the keys.
        query_grid: of the queries.
        prefix: tokens before both grids.
    """

    key_grid: tuple[int, ...]
    query_grid: tuple[int, ...]
    prefix: int

    @property
    def num_key_coordinates(self) -> int:
        """Coordinates of the keys along all axes together: `s`."""
        return sum(self.key_grid)

    def add_axis_logits(self, x: Tensor, by_coordinate: Tensor) -> None:
        """`x (b, h, m, j) += sum_a by_coordinate (b or 1, h or 1, m, s)[c_a(j)]`."""
        on_grid = self._on_grid(x)
        for axis, part in enumerate(by_coordinate.split(self.key_grid, -1)):
            sizes = [1] * len(self.key_grid)
            sizes[axis] = self.key_grid[axis]
            on_grid += part.unflatten(-1, sizes)

    def sum_per_coordinate(self, x: Tensor) -> Tensor:
        """`(b, h, m, s)`: `x (b, h, m, j)` summed over the keys of each coordinate."""
        on_grid, n = self._on_grid(x), len(self.key_grid)
        others = [[axis - n for axis in range(n) if axis != kept] for kept in range(n)]
        return torch.cat([on_grid.sum(dims) if dims else on_grid for dims in others], -1)

    def query_marks(self, block: Block, like: Tensor) -> Tensor:
        """`(m, s)`: 1 at the coordinates of each of the block's queries, 0 elsewhere."""
        begin, end = block.rows.begin, block.rows.end
        marks = like.new_zeros(end - begin, sum(self.query_grid))
        inside = slice(max(begin, self.prefix), end)
        if inside.start >= inside.stop:
            return marks
        at = torch.arange(inside.start - self.prefix, inside.stop - self.prefix, device=like.device)
        first = 0
        for size, coordinate in zip(
            self.query_grid, grid_coordinates(at, self.query_grid), strict=True
        ):
            marks[inside.start - begin :].scatter_(1, (coordinate + first).unsqueeze(1), 1)
            first += size
        return marks

    def joint_bias_index(self, block: Block, device: torch.device) -> tuple[slice, Tensor] | None:
        """The block's rows that lie on the grid, and each pair's entry of a joint bias `(m, n)`."""
        begin, end = max(block.rows.begin, self.prefix), block.rows.end
        if begin >= end:
            return None
        tokens = torch.arange(prod(self.key_grid), device=device)
        line, middle = torch.zeros_like(tokens), 0
        coordinates = grid_coordinates(tokens, self.key_grid)
        for size, coordinate in zip(self.key_grid, coordinates, strict=True):
            # An entry's number is linear in the offsets: that of key minus that of query.
            line = line * (2 * size - 1) + coordinate
            middle = middle * (2 * size - 1) + size - 1
        queries = line[begin - self.prefix : end - self.prefix]
        rows = slice(begin - block.rows.begin, end - block.rows.begin)
        return rows, line - queries.unsqueeze(1) + middle

    def _on_grid(self, x: Tensor) -> Tensor:
        return x[..., self.prefix :].unflatten(-1, self.key_grid)


def add_joint_bias(grid: GridBlocks, joint_bias: Tensor, block: Block, scores: Tensor) -> None:
    """Add `joint_bias (h or 1, r)` at the offsets of each pair to `scores (b, h, m, j)`."""
    where = grid.joint_bias_index(block, scores.device)
    if where is not None:
        rows, index = where
        picked = joint_bias[_heads(joint_bias, block)].index_select(1, index.flatten())
        scores[..., rows, grid.prefix :] += picked.unflatten(1, tuple(index.shape))


def collect_joint_bias(grid: GridBlocks, grad: Tensor, block: Block, d_scores: Tensor) -> None:
    """Add to the gradient `(h or 1, r)` of a joint bias."""
    where = grid.joint_bias_index(block, d_scores.device)
    if where is None:
        return
    rows, index = where
    per_head = d_scores[..., rows, grid.prefix :].sum(0).flatten(1)
    if grad.shape[0] == 1:
        per_head = per_head.sum(0, keepdim=True)
    part = grad[_heads(grad, block)]
    if grad.is_cuda:
        # There `index_add_` is atomic; this one sorts, and gives the same bits each time.
        entries = torch.arange(part.shape[0], device=grad.device).unsqueeze(1)
        part.index_put_((entries, index.flatten()), per_head, accumulate=True)
    else:
        part.index_add_(1, index.flatten(), per_head)


def _heads(joint_bias: Tensor, block: Block) -> slice:
    return block.heads if joint_bias.shape[0] > 1 else slice(0, 1)
