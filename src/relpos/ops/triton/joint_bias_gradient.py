"""The gradient of a grid's joint bias: `dS` of some queries' pairs at a time, summed by offset.

    dB_o = sum dS_ij            over all pairs of the grid's tokens whose coordinates differ by o

The pairs of a few lines of queries are written out, so that memory is in the order of the tokens,
and summed along one axis of the grid after the other. Nothing of a pair is computed twice, as it
would be by programs that own offsets: of a grid's tokens few have a key at each of these.
"""

from __future__ import annotations

from math import prod

from torch import Tensor

from .pair_sums import pair_sums
from .prepared_call import PreparedCall
from .saved import Saved

__all__ = ["joint_bias_gradient", "query_boxes"]

# Of the pairs that are written out at once, or as many as the queries' if these are more.
_BYTES = 2**26


def joint_bias_gradient(call: PreparedCall, saved: Saved, delta: Tensor) -> Tensor:
    """`(h or 1, entries)` in float32.

    Args:
        call: of the forward pass.
        saved: of the forward pass.
        delta: `(b, h, i)`, of the dq kernel.
    """
    assert call.grid is not None
    assert call.joint_bias is not None
    grid, prefix, heads = call.grid.key_grid, call.grid.prefix, call.joint_bias.shape[0]
    most = max(_BYTES, call.q.numel() * call.q.element_size()) // (4 * heads * call.seqlen_k)
    total, first = None, prefix
    for corner, box in query_boxes(grid, most):
        queries = range(first, first + prod(box))
        first = queries.stop
        pairs = pair_sums(call, saved, delta, batch=1, heads=heads, queries=queries)
        of_grid = pairs[0, :, :, prefix:].reshape(heads, *box, *grid)
        sums = _sum_by_offset(of_grid, corner)
        total = sums if total is None else total.add_(sums)
    assert total is not None
    return total.flatten(1)


def query_boxes(grid: tuple[int, ...], most: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """A grid cut into boxes of tokens that follow each other: the first corner and sizes of each.

    Args:
        grid: sizes along the axes.
        most: tokens of a box, but for one at least.

    >>> query_boxes((3, 4), 8)
    [((0, 0), (2, 4)), ((2, 0), (1, 4))]
    >>> query_boxes((2, 3), 2)
    [((0, 0), (1, 2)), ((0, 2), (1, 1)), ((1, 0), (1, 2)), ((1, 2), (1, 1))]
    """
    size, *others = grid
    line = prod(others)
    if others and line > most:
        inner = query_boxes(tuple(others), most)
        return [((row, *corner), (1, *box)) for row in range(size) for corner, box in inner]
    lines = min(max(most // line, 1), size)
    zeros = (0,) * len(others)
    return [
        ((first, *zeros), (min(lines, size - first), *others)) for first in range(0, size, lines)
    ]


def _sum_by_offset(pairs: Tensor, corner: tuple[int, ...]) -> Tensor:
    """`(heads, 2 n - 1, 2 m - 1, ...)` of `(heads, queries along each axis, n, m, ...)`.

    Args:
        pairs: a number for each pair.
        corner: the first query's coordinates.
    """
    for axis in reversed(range(len(corner))):
        # The sums by offset along the axes behind stand behind the keys.
        pairs = _sum_along(pairs.movedim((axis + 1, 2 * axis + 2), (-2, -1)), corner[axis])
    axes = range(len(corner), 0, -1)
    return pairs.permute(0, *axes)


def _sum_along(pairs: Tensor, first: int) -> Tensor:
    """`(..., 2 n - 1)` of `(..., queries, n)`, of which the first query has coordinate `first`."""
    *others, queries, size = pairs.shape
    sheared = pairs.new_zeros(*others, queries, 2 * size - 1)
    # Each query's numbers, at their offsets: a place to the left for each query.
    strides = (*sheared.stride()[:-2], 2 * size - 2, 1)
    sheared.as_strided(pairs.shape, strides, size - 1 - first).copy_(pairs)
    return sheared.sum(-2)
