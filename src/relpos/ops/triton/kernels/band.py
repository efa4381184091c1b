"""Walking along the keys from a tile of queries: what goes by offset, in LEFT, BAND and RIGHT.

For the forward kernel and for dq. In the band, the dot products with a table come from an offset
buffer (`offset_buffer.py`), and scores are kept in another one, to come back by offset and be
multiplied with a table's rows. There are two ways, both `(m, buffer_columns)`:

Narrow windows (`buffer_by_row`): a column is a row of the tables. The products with all rows are
made once, before the first tile, and read by row; scores are kept by row too, strictly inside the
window, where each query has one key for a row. Inside the loops nothing waits.

Wide ones: a column is an offset, and the columns are a ring. Each tile needs the products of `n`
offsets more than the one before, and they are made while it is at work; scores that are kept are
complete, and taken back, when the tile has passed. A barrier for each tile.

Either way `u` numbers the columns, column 0 belongs to the tables' row `row0`, and a tile of the
band that begins at key `j0` is at column `u = j0 - band_begin` (of the ring).
"""

import triton
import triton.language as tl

from .offset_buffer import (
    by_key,
    by_offset,
    first_row,
    tile_dot_queries,
    write_dots,
    write_tile_dots,
)
from .regions import BAND, table_row
from .scores import tile_scores


@triton.jit
def row_of_column_0(args, i0, regions, SPEC: tl.constexpr):
    """`row0`, for the queries from `i0` and the regions of their keys."""
    if SPEC.buffer_by_row:
        return 0
    else:
        return first_row(args, i0, regions.band_begin, SPEC)


@triton.jit
def begin_dots(buffer, args, TABLE: tl.constexpr, h, x, row0, SPEC: tl.constexpr):
    """Write the products of `x (m, BLOCK)` that the band's first tile needs, or all of them."""
    if SPEC.buffer_by_row:
        for u in range(0, args.table_rows, SPEC.block_n):
            write_dots(buffer, args, TABLE, h, x, u, u, SPEC)
    else:
        write_tile_dots(buffer, args, TABLE, h, x, row0, SPEC)


@triton.jit
def extend_dots(buffer, args, TABLE: tl.constexpr, h, x, row0, u, SPEC: tl.constexpr):
    """Write what the tile after that at `u` needs besides; only on a ring."""
    u += SPEC.block_m + SPEC.block_n
    write_dots(buffer, args, TABLE, h, x, row0 + u, u, SPEC)


@triton.jit
def read_dots(buffer, args, in_end_region, pairs, u, REGION: tl.constexpr, SPEC: tl.constexpr):
    """`x_i . table[j - i]` of a tile: `(m, n)`, or `(m, 1)` from `in_end_region (m,)`."""
    if REGION == BAND:
        if SPEC.buffer_by_row:
            a = tl.arange(0, SPEC.block_m)
            row = table_row(args, pairs.i, pairs.j)
            return tl.load(buffer + (a[:, None] * SPEC.buffer_columns + row))
        else:
            return tl.load(buffer + by_key(u, SPEC))
    else:
        return in_end_region[:, None]


@triton.jit
def walk_scores(
    args, pairs, i0, j0, u, q, k, keys_buffer, p_dot_end_row, queries_buffer,
    REGION: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """`tile_scores` of the queries from `i0` and the keys from `j0`, a tile at `u`: `(m, n)`.

    Args:
        args: of the kernel.
        pairs: of the tile.
        i0: number of the first query.
        j0: number of the first key.
        u: column of the tile.
        q: `(m, d)`.
        k: `(n, d)`.
        keys_buffer: has `p_i . K[j-i]` in the band.
        p_dot_end_row: `(m,)`, the same outside it; None without that table.
        queries_buffer: for `k_j . Q[j-i]`.
        REGION: of the tile.
        SPEC: of the kernel.
    """
    dots = tl.dot(q, tl.trans(k), input_precision=SPEC.precision)
    if SPEC.has_keys:
        dots += read_dots(keys_buffer, args, p_dot_end_row, pairs, u, REGION, SPEC)
    if SPEC.has_queries:
        dots += tile_dot_queries(queries_buffer, args, pairs.h, k, i0, j0, REGION, SPEC)
    return tile_scores(args, pairs, dots, REGION, SPEC.ragged_keys, SPEC)


@triton.jit
def begin_kept(buffer, args, fill, SPEC: tl.constexpr):
    """Fill the columns of pairs that may never come; a ring has none that is read."""
    if SPEC.buffer_by_row:
        a = tl.arange(0, SPEC.block_m)
        c = tl.arange(0, SPEC.block_n)
        for u in range(0, args.table_rows, SPEC.block_n):
            at = a[:, None] * SPEC.buffer_columns + (u + c)[None, :]
            tl.store(buffer + at, tl.zeros_like(at).to(tl.float32) + fill)


@triton.jit
def keep(buffer, args, pairs, u, tile, SPEC: tl.constexpr):
    """Keep `tile (m, n)`, which is at `u`, by offset."""
    if SPEC.buffer_by_row:
        a = tl.arange(0, SPEC.block_m)
        row = table_row(args, pairs.i, pairs.j)
        inside = (row > 0) & (row < args.table_rows - 1)
        tl.store(buffer + (a[:, None] * SPEC.buffer_columns + row), tile, mask=inside)
    else:
        tl.store(buffer + by_key(u, SPEC), tile)


@triton.jit
def take(buffer, args, regions, row0, u, fill, SPEC: tl.constexpr):
    """What is kept in columns `u..u + n - 1`, `(m, n)`; `fill` where there is nothing.

    Nor is there at the tables' two end rows, which many keys of a query may select: what belongs to
    them is summed by `regions.end_row_sums`.
    """
    a = tl.arange(0, SPEC.block_m)
    c = tl.arange(0, SPEC.block_n)
    row = row0 + u + c
    inside = ((row > 0) & (row < args.table_rows - 1))[None, :]
    if SPEC.buffer_by_row:
        inside = inside & (a >= 0)[:, None]
    else:
        key = regions.band_begin + u + c[None, :] - (SPEC.block_m - 1 - a)[:, None]
        inside = inside & (key >= regions.band_begin) & (key < regions.band_end)
    return tl.load(buffer + by_offset(u, SPEC), mask=inside, other=fill)
