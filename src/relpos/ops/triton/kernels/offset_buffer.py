"""The shear inside a kernel: numbers are written to an offset buffer by offset, read by key.

A program has some offset buffers to itself: float32 workspace in global memory, `(m, columns)` each
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
from .tiles import load_table_rows, zeros


@triton.jit
def offset_buffer(args, NUMBER: tl.constexpr, SPEC: tl.constexpr):
    """The address of one of the program's offset buffers."""
    base = args.inputs.offset_buffers + tl.cast(tl.program_id(0), tl.int64) * SPEC.program_buffers
    return base + NUMBER * SPEC.block_m * SPEC.buffer_columns


@triton.jit
def write_dots(
    buffer, x, table, h, row, rows_count, u, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    SPEC: tl.constexpr,
):  # fmt: skip
    """`buffer[a, u + c] = x_a . table[row + c]` for `c < n`, with `x (tokens, BLOCK)`."""
    a = tl.arange(0, x.shape[0])
    c = tl.arange(0, SPEC.block_n)
    rows = load_table_rows(table, h, row + c, rows_count, WIDTH, BLOCK)
    dots = tl.dot(x, tl.trans(rows), input_precision=SPEC.precision)
    W: tl.constexpr = SPEC.buffer_columns
    tl.store(buffer + (a[:, None] * W + ((u + c) & (W - 1))[None, :]), dots)


@triton.jit
def write_tile_dots(
    buffer, args, x, table, h, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPEC: tl.constexpr
):
    """The same for all `m + n` offsets of a tile, the first of which selects row `row`."""
    for part in tl.static_range(SPEC.block_m // SPEC.block_n + 1):
        u = part * SPEC.block_n
        write_dots(buffer, x, table, h, row + u, args.window_rows, u, WIDTH, BLOCK, SPEC)


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
    return j0 - (args.query_start + i0 + SPEC.block_m - 1) - args.window_first


@triton.jit
def tile_dot_rows(
    args, h, x, table, i0, j0, buffer, REGION: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """`x_i . table[j - i]` of the tile of queries from `i0` and keys from `j0`.

    With `x (m, BLOCK)`: `(m, n)`, or `(m, 1)` outside the band.
    """
    if REGION == BAND:
        tl.debug_barrier()  # the buffer may still be read
        row = first_row(args, i0, j0, SPEC)
        write_tile_dots(buffer, args, x, table, h, row, WIDTH, BLOCK, SPEC)
        tl.debug_barrier()
        return tl.load(buffer + by_key(0, SPEC))
    else:
        return end_dot(args, h, x, table, REGION, WIDTH, BLOCK)[:, None]


@triton.jit
def tile_dot_queries(
    args, h, k, i0, j0, buffer, REGION: tl.constexpr, SPEC: tl.constexpr
):  # fmt: skip
    """`k_j . Q[j - i]` of the same tile, with `k (n, d)`: `(m, n)`, or `(1, n)` outside the band.

    The buffer has a row for each key: pair (a, c) is at `buffer[c, c + m - 1 - a]`.
    """
    table = args.inputs.queries_table
    if REGION == BAND:
        tl.debug_barrier()  # the buffer may still be read
        row = first_row(args, i0, j0, SPEC)
        write_tile_dots(buffer, args, k, table, h, row, SPEC.head_dim, SPEC.block_head_dim, SPEC)
        tl.debug_barrier()
        a = tl.arange(0, SPEC.block_m)
        c = tl.arange(0, SPEC.block_n)
        # Neighbouring threads along the queries: a row of the buffer lies together in memory.
        at = c[:, None] * SPEC.buffer_columns + c[:, None] + (SPEC.block_m - 1 - a)[None, :]
        return tl.trans(tl.load(buffer + at))
    else:
        return end_dot(args, h, k, table, REGION, SPEC.head_dim, SPEC.block_head_dim)[None, :]


@triton.jit
def tile_times_queries(args, h, x_transposed, i0, j0, buffer, SPEC: tl.constexpr):
    """`sum_i x_ij Q[j-i]` of the same tile, with `x_transposed (n, m)`: `(n, d)`.

    The tile is kept as it is, `buffer[c, a]`; its number at offset `u` is that of query
    `a = c + m - 1 - u`.
    """
    a = tl.arange(0, SPEC.block_m)
    c = tl.arange(0, SPEC.block_n)
    tl.debug_barrier()  # the buffer may still be read
    tl.store(buffer + c[:, None] * SPEC.block_m + a[None, :], x_transposed)
    tl.debug_barrier()
    row = first_row(args, i0, j0, SPEC)
    total = zeros(SPEC.block_n, SPEC.block_head_dim)
    for part in tl.static_range(SPEC.block_m // SPEC.block_n + 1):
        u = part * SPEC.block_n
        query = c[:, None] + (SPEC.block_m - 1 - u - c)[None, :]
        inside = (query >= 0) & (query < SPEC.block_m)
        x_by_offset = tl.load(buffer + c[:, None] * SPEC.block_m + query, mask=inside, other=0.0)
        total += times_table_rows(
            args, x_by_offset, args.inputs.queries_table, h, row + u,
            SPEC.head_dim, SPEC.block_head_dim, SPEC,
        )  # fmt: skip
    return total


@triton.jit
def times_table_rows(
    args, x, table, h, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPEC: tl.constexpr
):
    """`sum_c x[:, c] table[row + c]`, with `x (tokens, n)` by offset: `(tokens, BLOCK)`."""
    rows = load_table_rows(
        table, h, row + tl.arange(0, SPEC.block_n), args.window_rows, WIDTH, BLOCK
    )
    return tl.dot(x.to(rows.dtype), rows, input_precision=SPEC.precision)
