"""A grid's relative logits for queries, and their gradients: products of 16 bits, sums of 32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..layouts import number_of_layouts
from . import launch
from .kernels.axis_logits import axis_dq_kernel, axis_drows_kernel, axis_logits_kernel
from .recorded import run_pass
from .tensor_args import table_tensor, token_tensor, with_dense_rows
from .tuning import TileShape, count_tiles, next_power_of_two, split_count

__all__ = ["axis_logits", "axis_logits_gradients"]

_SHAPE = TileShape(64, 64, 4, 2)


class _Axis(NamedTuple):
    """One axis of a grid, as the kernels count along it.

    Args:
        size: coordinates.
        inner: tokens from one coordinate to the next.
        others: tokens of each coordinate.
        column: of all axes' logits, the first one.
    """

    size: int
    inner: int
    others: int
    column: int

    @property
    def tokens_of_head(self) -> int:
        """The tokens of each head in a tile."""
        return min(_SHAPE.m, next_power_of_two(self.others))

    @property
    def coordinates_of_tile(self) -> int:
        """The keys' coordinates in a tile."""
        return min(_SHAPE.n, next_power_of_two(max(self.size, 16)))

    @classmethod
    def of(cls, grid: Sequence[int]) -> Iterator[_Axis]:
        """All of a grid, in order."""
        for number, size in enumerate(grid):
            yield cls(size, prod(grid[number + 1 :]), prod(grid) // size, sum(grid[:number]))


def axis_logits(
    q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int, scale: float
) -> Tensor:
    """`(b, h, i, s)` in float32: all axes side by side, zeros for tokens before the grid.

    Args:
        q: `(b, h, i, d)`.
        rows: for each axis `(h or 1, n, n, d)`, by the coordinates of queries and keys; rounded to
            the dtype of `q`.
        grid: of queries and keys alike.
        prefix: tokens before it.
        scale: of the products.
    """
    key = "axis logits", tuple(grid), prefix, scale
    return run_pass(key, (q, *rows), lambda: _logits(q, rows, grid, prefix, scale))


def _logits(
    q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int, scale: float
) -> Tensor:
    q = with_dense_rows(q)
    batch, heads, tokens, dim = q.shape
    out = q.new_empty((batch, heads, tokens, sum(grid)), dtype=torch.float32)
    out[:, :, :prefix] = 0
    for axis, of_axis in zip(_Axis.of(grid), rows, strict=True):
        _run(
            axis_logits_kernel, _programs(q, of_axis, axis), (q, of_axis, out), axis,
            token_tensor(q), table_tensor(of_axis.to(q.dtype)), out, batch, heads,
            of_axis.shape[0], tokens, prefix, axis.size, axis.inner, axis.others, out.shape[3],
            axis.column, scale, dim=dim,
        )  # fmt: skip
    return out


def axis_logits_gradients(
    d_logits: Tensor,
    q: Tensor,
    rows: Sequence[Tensor],
    grid: Sequence[int],
    prefix: int,
    scale: float,
    needs_q: bool = True,
    needs_rows: bool = True,
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of `q` and of the rows of each axis, the latter in float32.

    Of what is not needed: an empty tensor, or none at all.

    Args:
        d_logits: as the logits.
        q: as `axis_logits` has had it, and the others.
        rows: the same.
        grid: the same.
        prefix: the same.
        scale: the same.
        needs_q: whether that of `q` is needed.
        needs_rows: whether those of the rows are.
    """
    key = "axis logits, backward", tuple(grid), prefix, scale, needs_q, needs_rows
    return run_pass(
        key, (q, d_logits, *rows),
        lambda: _gradients(d_logits, q, rows, grid, prefix, scale, needs_q, needs_rows),
    )  # fmt: skip


def _gradients(
    d_logits: Tensor, q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int,
    scale: float, needs_q: bool, needs_rows: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    q, d_logits = with_dense_rows(q), d_logits.float().contiguous()
    batch, heads, tokens, dim = q.shape
    d_q = q.new_empty(q.shape if needs_q else (0,))
    sums = None
    if needs_q:
        d_q[:, :, :prefix] = 0
        sums = q.new_empty(q.shape, dtype=torch.float32) if len(grid) > 1 else None
    d_rows = []
    axes = list(_Axis.of(grid))
    for axis, of_axis in zip(axes, rows, strict=True):
        sizes = (
            batch, heads, of_axis.shape[0], tokens, prefix, axis.size, axis.inner, axis.others,
            d_logits.shape[3], axis.column, scale,
        )  # fmt: skip
        if needs_q:
            _run(
                axis_dq_kernel, _programs(q, of_axis, axis), (d_logits, of_axis, sums, d_q), axis,
                d_logits, table_tensor(of_axis.to(q.dtype)), sums, d_q, *sizes, dim=dim,
                IS_FIRST=axis is axes[0], IS_LAST=axis is axes[-1],
            )  # fmt: skip
        if not needs_rows:
            continue
        programs = of_axis.shape[0] * axis.size * count_tiles(axis.size, axis.coordinates_of_tile)
        splits = split_count(programs, _query_tiles(q, of_axis, axis), q.device)
        sums_of_rows = q.new_empty((splits, *of_axis.shape), dtype=torch.float32)
        _run(
            axis_drows_kernel, programs * splits, (d_logits, q, sums_of_rows), axis,
            d_logits, token_tensor(q), sums_of_rows, *sizes, splits, dim=dim,
        )  # fmt: skip
        d_rows.append(sums_of_rows.sum(0))
    return d_q, d_rows


def _programs(q: Tensor, rows: Tensor, axis: _Axis) -> int:
    return rows.shape[0] * axis.size * _query_tiles(q, rows, axis)


def _query_tiles(q: Tensor, rows: Tensor, axis: _Axis) -> int:
    """How many tiles hold the queries of one coordinate whose heads share rows."""
    heads = q.shape[0] * (q.shape[1] // rows.shape[0])
    return count_tiles(heads, _SHAPE.m // axis.tokens_of_head) * count_tiles(
        axis.others, axis.tokens_of_head
    )


def _run(
    kernel: Any, programs: int, tensors: tuple[Tensor | None, ...], axis: _Axis, *arguments: Any,
    dim: int, **constants: bool,
) -> None:  # fmt: skip
    """Run a kernel; for an axis and what lies as `tensors` do, all launches are compiled alike."""
    if not programs:
        return
    with torch.cuda.device_of(tensors[0]):
        launch.run_programs(
            kernel, programs, *arguments, shape=_SHAPE, known=(number_of_layouts(tensors), axis),
            M=_SHAPE.m, T=axis.tokens_of_head, N=axis.coordinates_of_tile, DIM=dim,
            BLOCK=next_power_of_two(max(dim, 16)), **constants,
        )  # fmt: skip
