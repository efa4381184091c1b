"""The gradient of a grid's joint bias: `dS` of some queries' pairs at a time, summed by offset.

    dB_o = sum dS_ij            over all pairs of the grid's tokens whose coordinates differ by o

The pairs of some tiles of queries are written out, so that memory is in the order of the tokens,
and summed along one axis of the grid after the other. No pair's products are made twice, as they
would be by programs that own offsets: of a grid's tokens few have a key at each of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torch import Tensor

from .pair_sums import pair_sums
from .prepared_call import PreparedCall
from .saved import Saved
from .tuning import tile_shapes

__all__ = ["Box", "joint_bias_gradient", "most_queries", "query_boxes"]

Box = tuple[tuple[int, ...], tuple[int, ...]]  # its first corner, and its sizes

# Of the pairs that are written out at once: this, or what all queries take if that is more, but
# those of one tile of queries at least.
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
    total = None
    for queries in _ranges_of_queries(call, heads):
        pairs = pair_sums(call, saved, delta, batch=1, heads=heads, queries=queries)
        of_grid = pairs[0, :, max(prefix - queries.start, 0) :, prefix:]
        begin = max(queries.start - prefix, 0)
        for corner, box in query_boxes(grid, begin, max(queries.stop - prefix, 0)):
            of_box, of_grid = of_grid.split_with_sizes(
                [prod(box), of_grid.shape[1] - prod(box)], dim=1
            )
            sums = _sum_by_offset(of_box.reshape(heads, *box, *grid), corner)
            total = sums if total is None else total.add_(sums)
    assert total is not None
    return total.flatten(1)


def _ranges_of_queries(call: PreparedCall, heads: int) -> Iterator[range]:
    """Whole tiles of queries, as many at a time as may be written out; the last may be shorter."""
    tile = tile_shapes("dpairs", call)[0].m  # smaller ones divide it
    size = max(most_queries(call, heads) // tile, 1) * tile
    for first in range(0, call.seqlen_q, size):
        yield range(first, min(first + size, call.seqlen_q))


def most_queries(call: PreparedCall, heads: int) -> int:
    """How many queries' pairs may be written out at once, if whole tiles need no more.

    Args:
        call: of the forward pass.
        heads: of the sums.
    """
    return max(_BYTES, call.q.numel() * call.q.element_size()) // (4 * heads * call.seqlen_k)


def query_boxes(grid: tuple[int, ...], first: int, end: int) -> list[Box]:
    """The tokens `first..end - 1` of a grid as boxes, in their order.

    Args:
        grid: sizes along the axes.
        first: number of a token.
        end: of that after the last one.

    >>> query_boxes((3, 4), 2, 11)
    [((0, 2), (1, 2)), ((1, 0), (1, 4)), ((2, 0), (1, 3))]
    >>> query_boxes((3, 4), 0, 8)
    [((0, 0), (2, 4))]
    """
    if first >= end:
        return []
    _, *others = grid
    if not others:
        return [((first,), (end - first,))]
    line = prod(others)

    def part_of_line(row: int, first: int, end: int) -> list[Box]:
        begin = row * line
        boxes = query_boxes(tuple(others), first - begin, end - begin)
        return [((row, *corner), (1, *box)) for corner, box in boxes]

    # Of whole lines the first, and that after the last.
    whole, beyond = -(-first // line), end // line
    if whole > beyond:
        return part_of_line(beyond, first, end)
    found = part_of_line(whole - 1, first, whole * line)
    if whole < beyond:
        found.append(((whole, *(0,) * len(others)), (beyond - whole, *others)))
    return found + part_of_line(beyond, beyond * line, end)


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
