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
from torch.nn.functional import pad

from ...offsets import grid_coordinates
from ..locality import Window, outside_ranges, outside_window
from .local_keys import keys_of_ranges
from .plan import Block, VisibleKeys

__all__ = ["GridBlocks", "add_joint_bias", "collect_joint_bias"]


@dataclass(frozen=True)
class GridBlocks:
    """The grid of one call.

    Args:
        key_grid: of the keys.
        query_grid: of the queries.
        prefix: tokens before both grids.
        windows: of each axis; empty without any. Where there are, the grids are the same.
        axis_ranges: as in `Arguments`.
    """

    key_grid: tuple[int, ...]
    query_grid: tuple[int, ...]
    prefix: int
    windows: tuple[Window, ...] = ()
    axis_ranges: Tensor | None = None

    @property
    def num_key_coordinates(self) -> int:
        """Coordinates of the keys along all axes together: `s`."""
        return sum(self.key_grid)

    def keys_of_windows(self, begin: int, end: int) -> tuple[int, int]:
        """The keys that the window of the first axis reaches, and the prefix: one run of keys.

        So with a prefix it has all lines before those of the window, too.

        Args:
            begin: number of the first query.
            end: number after the last.
        """
        lines, line = self.key_grid[0], prod(self.key_grid[1:])
        if begin < self.prefix or not self.windows:
            return 0, self.prefix + lines * line
        left, right = self.windows[0]
        first = 0 if left is None else max((begin - self.prefix) // line - left, 0)
        stop = lines if right is None else min((end - 1 - self.prefix) // line + right + 1, lines)
        return 0 if self.prefix else first * line, self.prefix + stop * line

    def keys_of_ranges(self, axis_ranges: Tensor) -> VisibleKeys:
        """The keys that ranges of the first axis reach, and the prefix.

        Args:
            axis_ranges: of this grid, on the CPU.
        """
        first_axis = axis_ranges[:, : self.query_grid[0]].clamp(0, self.key_grid[0])
        lines_of = keys_of_ranges(first_axis, self.key_grid[0])
        line, line_of_queries = prod(self.key_grid[1:]), prod(self.query_grid[1:])

        def visible_keys(begin: int, end: int) -> tuple[int, int]:
            if begin < self.prefix:
                return 0, self.prefix + self.key_grid[0] * line
            first_line = (begin - self.prefix) // line_of_queries
            first, stop = lines_of(first_line, (end - 1 - self.prefix) // line_of_queries + 1)
            if first >= stop:
                return 0, self.prefix
            return 0 if self.prefix else first * line, self.prefix + stop * line

        return visible_keys

    def whole_lines(self, visible_keys: VisibleKeys) -> VisibleKeys:
        """The keys given and what completes the lines of the first axis at both ends."""
        line = max(prod(self.key_grid[1:]), 1)

        def in_lines(begin: int, end: int) -> tuple[int, int]:
            first, stop = visible_keys(begin, end)
            if first >= stop:
                return 0, 0
            if first > self.prefix:
                first -= (first - self.prefix) % line
            return first, max(stop + (self.prefix - stop) % line, self.prefix)

        return in_lines

    def hidden_pairs(self, block: Block, device: torch.device) -> Tensor:
        """`(m, n)`: True where both lie on the grid, the key outside the query's windows or ranges.

        With ranges `(b or 1, 1, m, n)`.
        """
        queries, keys = (
            torch.arange(part.start, part.stop, device=device)
            for part in (slice(block.rows.begin, block.rows.end), block.columns)
        )
        hidden = torch.zeros(len(queries), len(keys), dtype=torch.bool, device=device)
        along_axes = [
            grid_coordinates((tokens - self.prefix).clamp(min=0), grid)
            for tokens, grid in ((queries, self.query_grid), (keys, self.key_grid))
        ]
        if self.windows:
            for window, of_queries, of_keys in zip(self.windows, *along_axes, strict=True):
                outside = outside_window(of_keys - of_queries.unsqueeze(1), window)
                hidden = hidden if outside is None else hidden | outside
        if self.axis_ranges is not None:
            batch = block.batch if self.axis_ranges.shape[0] > 1 else slice(0, 1)
            ranges = self.axis_ranges[batch].split(self.query_grid, 1)
            for of_axis, of_queries, of_keys in zip(ranges, *along_axes, strict=True):
                hidden = hidden | outside_ranges(of_axis[:, of_queries], of_keys)
        return hidden & (queries >= self.prefix).unsqueeze(1) & (keys >= self.prefix)

    def add_axis_logits(self, block: Block, x: Tensor, by_coordinate: Tensor) -> None:
        """`x (b, h, m, n) += sum_a by_coordinate (b or 1, h or 1, m, s)[c_a(j)]`."""
        on_grid, lines = self._on_grid(block, x)
        for axis, part in enumerate(by_coordinate.split(self.key_grid, -1)):
            sizes = [1] * len(self.key_grid)
            seen = part[..., lines] if axis == 0 else part
            sizes[axis] = seen.shape[-1]
            on_grid += seen.unflatten(-1, sizes)

    def sum_per_coordinate(self, block: Block, x: Tensor) -> Tensor:
        """`(b, h, m, s)`: `x (b, h, m, n)` summed over the keys of each coordinate."""
        on_grid, lines = self._on_grid(block, x)
        n = len(self.key_grid)
        others = [[axis - n for axis in range(n) if axis != kept] for kept in range(n)]
        parts = [on_grid.sum(dims) if dims else on_grid for dims in others]
        parts[0] = pad(parts[0], (lines.start, self.key_grid[0] - lines.stop))
        return torch.cat(parts, -1)

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
        keys = line[max(block.columns.start - self.prefix, 0) : block.columns.stop - self.prefix]
        rows = slice(begin - block.rows.begin, end - block.rows.begin)
        return rows, keys - queries.unsqueeze(1) + middle

    def prefix_of(self, block: Block) -> int:
        """The tokens before the grid among the block's keys."""
        return max(self.prefix - block.columns.start, 0)

    def _on_grid(self, block: Block, x: Tensor) -> tuple[Tensor, slice]:
        """`x (..., n)` of the block's keys as a grid, and which coordinates along axis 0 it has."""
        prefix, line = self.prefix_of(block), prod(self.key_grid[1:])
        first = max(block.columns.start - self.prefix, 0) // line
        on_grid = x[..., prefix:].unflatten(-1, (-1, *self.key_grid[1:]))
        return on_grid, slice(first, first + (x.shape[-1] - prefix) // line)


def add_joint_bias(grid: GridBlocks, joint_bias: Tensor, block: Block, scores: Tensor) -> None:
    """Add `joint_bias (h or 1, r)` at the offsets of each pair to `scores (b, h, m, j)`."""
    where = grid.joint_bias_index(block, scores.device)
    if where is not None:
        rows, index = where
        picked = joint_bias[_heads(joint_bias, block)].index_select(1, index.flatten())
        scores[..., rows, grid.prefix_of(block) :] += picked.unflatten(1, tuple(index.shape))


def collect_joint_bias(grid: GridBlocks, grad: Tensor, block: Block, d_scores: Tensor) -> None:
    """Add to the gradient `(h or 1, r)` of a joint bias."""
    where = grid.joint_bias_index(block, d_scores.device)
    if where is None:
        return
    rows, index = where
    per_head = d_scores[..., rows, grid.prefix_of(block) :].sum(0).flatten(1)
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
