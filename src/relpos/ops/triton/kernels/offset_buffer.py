"""The shear inside a kernel: numbers are written to an offset buffer by offset, read by key.

A program has offset buffers to itself: float32 workspace in global memory, `(m, columns)` each
(`(n, columns)` for a table that keys are dotted with). Count offsets from that of a tile's first
key and last query: then the pair (query a, key c) of the tile has the offset `c + m - 1 - a`, and
column `u` of row `a` belongs to offset `u`. What is written by offset is read by key along a
diagonal, and the reverse:

    by offset: buffer[a, u + c]              by key: buffer[a, u + c + m - 1 - a]

The columns are a power of two and a ring: column `u` is `u & (columns - 1)`. Writes become visible
to the program's other threads at a barrier.
"""

import triton
import triton.language as tl

from .regions import BAND, end_dot
from .tables import QUERIES, dot_rows, times_rows
from .tiles import zeros


@triton.jit
def offset_buffer(args, NUMBER: tl.constexpr, SPEC: tl.constexpr):
    """The address of one of the program's offset buffers."""
    base = args.inputs.offset_buffers + tl.cast(tl.program_id(0), tl.int64) * SPEC.program_buffers
    return base + NUMBER * SPEC.block_m * SPEC.buffer_columns


@triton.jit
def write_dots(buffer, args, TABLE: tl.constexpr, h, x, row, u, SPEC: tl.constexpr):
    """`buffer[a, u + c] = x_a . table[row + c]` for `c < n`, with `x (tokens, BLOCK)`."""
    a = tl.arange(0, x.shape[0])
    c = tl.arange(0, SPEC.block_n)
    W: tl.constexpr = SPEC.buffer_columns
    dots = dot_rows(args, TABLE, h, x, row + c, SPEC)
    tl.store(buffer + (a[:, None] * W + ((u + c) & (W - 1))[None, :]), dots)


@triton.jit
def write_tile_dots(buffer, args, TABLE: tl.constexpr, h, x, row, SPEC: tl.constexpr):
    """The same for all `m + n` offsets of a tile, the first of which selects row `row`."""
    for part in tl.static_range(SPEC.block_m // SPEC.block_n + 1):
        u = part * SPEC.block_n
        write_dots(buffer, args, TABLE, h, x, row + u, u, SPEC)


@triton.jit
def by_key(u, SPEC: tl.constexpr):
    """`(m, n)`: where a tile's pairs are in a buffer whose offset 0 is in column `u`."""
    a = tl.arange(0, SPEC.block_m)
    c = tl.arange(0, SPEC.block_n)
    W: tl.constexpr = SPEC.buffer_columns
    column = (u + c[None, :] + (SPEC.block_m - 1 - a)[:, None]) & (W - 1)
    return a[:, None] * W + column


@triton.jit
def by_offset(u, SPEC: tl.constexpr):
    """`(m, n)`: where the columns `u + c` are."""
    a = tl.arange(0, SPEC.block_m)
    c = tl.arange(0, SPEC.block_n)
    W: tl.constexpr = SPEC.buffer_columns
    return a[:, None] * W + ((u + c) & (W - 1))[None, :]


@triton.jit
def first_row(args, i0, j0, SPEC: tl.constexpr):
    """The row of the tables for the tile's first key and last query; may lie beyond them."""
    return j0 - (args.query_start + i0 + SPEC.block_m - 1) - args.table_first


@triton.jit
def tile_dot_rows(
    buffer, args, TABLE: tl.constexpr, h, x, i0, j0, REGION: tl.constexpr, SPEC: tl.constexpr
):
    """`x_i . table[j - i]` of the tile of queries from `i0` and keys from `j0`.

    With `x (m, BLOCK)`: `(m, n)`, or `(m, 1)` outside the band.
    """
    if REGION == BAND:
        tl.debug_barrier()  # the buffer may still be read
        write_tile_dots(buffer, args, TABLE, h, x, first_row(args, i0, j0, SPEC), SPEC)
        tl.debug_barrier()
        return tl.load(buffer + by_key(0, SPEC))
    else:
        return end_dot(args, TABLE, h, x, REGION, SPEC)[:, None]


@triton.jit
def tile_dot_queries(buffer, args, h, k, i0, j0, REGION: tl.constexpr, SPEC: tl.constexpr):
    """`k_j . Q[j - i]` of the same tile, with `k (n, d)`: `(m, n)`, or `(1, n)` outside the band.

    The buffer has a row for each key: pair (a, c) is at `buffer[c, c + m - 1 - a]`.
    """
    if REGION == BAND:
        tl.debug_barrier()  # the buffer may still be read
        write_tile_dots(buffer, args, QUERIES, h, k, first_row(args, i0, j0, SPEC), SPEC)
        tl.debug_barrier()
        a = tl.arange(0, SPEC.block_m)
        c = tl.arange(0, SPEC.block_n)
        # Neighbouring threads along the queries: a row of the buffer lies together in memory.
        at = c[:, None] * SPEC.buffer_columns + c[:, None] + (SPEC.block_m - 1 - a)[None, :]
        return tl.trans(tl.load(buffer + at))
    else:
        return end_dot(args, QUERIES, h, k, REGION, SPEC)[None, :]


@triton.jit
def tile_times_queries(buffer, args, h, x_transposed, i0, j0, SPEC: tl.constexpr):
    """`sum_i x_ij Q[j-i]` of the same tile, with `x_transposed (n, m)`: `(n, d)`.

    The tile is kept as it is, `buffer[c, a]`; its number at offset `u` is that of query
    `a = c + m - 1 - u`.
    """
    a = tl.arange(0, SPEC.block_m)
    c = tl.arange(0, SPEC.block_n)
    rows = buffer + c[:, None] * SPEC.block_m
    tl.debug_barrier()  # the buffer may still be read
    tl.store(rows + a[None, :], x_transposed)
    tl.debug_barrier()
    row = first_row(args, i0, j0, SPEC)
    total = zeros(SPEC.block_n, SPEC.block_head_dim)
    for part in tl.static_range(SPEC.block_m // SPEC.block_n + 1):
        u = part * SPEC.block_n
        query = c[:, None] + (SPEC.block_m - 1 - u - c)[None, :]
        inside = (query >= 0) & (query < SPEC.block_m)
        x_by_offset = tl.load(rows + query, mask=inside, other=0.0)
        total += times_rows(args, QUERIES, h, x_by_offset, row + u + c, SPEC)
    return total
