"""Rows of the tables that vectors are dotted with, or that weights are multiplied with.

`TABLE` is one of `KEYS (h or 1, r, rel_dim)`, `QUERIES (h or 1, r, d)`, `VALUES (h or 1, r, dv)`.
Its tiles have `BLOCK` columns, the power of two above its width; those beyond are zeros.
"""

import triton
import triton.language as tl

KEYS = tl.constexpr(0)
QUERIES = tl.constexpr(1)
VALUES = tl.constexpr(2)


@triton.jit
def load_rows(args, TABLE: tl.constexpr, h, rows, SPEC: tl.constexpr):
    """Rows `rows (n,)` of a table, its end rows beyond: `(n, BLOCK)`."""
    inputs, count = args.inputs, args.table_rows
    if TABLE == KEYS:
        return _load_rows(inputs.keys_table, h, rows, count, SPEC.rel_dim, SPEC.block_rel_dim)
    elif TABLE == QUERIES:
        return _load_rows(inputs.queries_table, h, rows, count, SPEC.head_dim, SPEC.block_head_dim)
    else:
        return _load_rows(inputs.values_table, h, rows, count, SPEC.value_dim, SPEC.block_value_dim)


@triton.jit
def load_row(args, TABLE: tl.constexpr, h, row, SPEC: tl.constexpr):
    """One row of a table in float32, `(BLOCK,)`."""
    inputs = args.inputs
    if TABLE == KEYS:
        return _load_row(inputs.keys_table, h, row, SPEC.rel_dim, SPEC.block_rel_dim)
    elif TABLE == QUERIES:
        return _load_row(inputs.queries_table, h, row, SPEC.head_dim, SPEC.block_head_dim)
    else:
        return _load_row(inputs.values_table, h, row, SPEC.value_dim, SPEC.block_value_dim)


@triton.jit
def dot_rows(args, TABLE: tl.constexpr, h, x, rows, SPEC: tl.constexpr):
    """`x (tokens, BLOCK)` dotted with rows `rows (n,)` of a table: `(tokens, n)`."""
    table_rows = load_rows(args, TABLE, h, rows, SPEC)
    return tl.dot(x, tl.trans(table_rows), input_precision=SPEC.precision)


@triton.jit
def times_rows(args, TABLE: tl.constexpr, h, x, rows, SPEC: tl.constexpr):
    """`sum_c x[:, c] table[rows[c]]`, with `x (tokens, n)`: `(tokens, BLOCK)`."""
    table_rows = load_rows(args, TABLE, h, rows, SPEC)
    return tl.dot(x.to(table_rows.dtype), table_rows, input_precision=SPEC.precision)


@triton.jit
def _load_rows(table, h, rows, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    rows = tl.minimum(tl.maximum(rows, 0), count - 1)
    base = table.ptr + tl.cast(h, tl.int64) * table.stride_h
    at = rows[:, None] * WIDTH + columns[None, :]
    if WIDTH < BLOCK:
        return tl.load(base + at, mask=(columns < WIDTH)[None, :], other=0.0)
    return tl.load(base + at)


@triton.jit
def _load_row(table, h, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    base = table.ptr + tl.cast(h, tl.int64) * table.stride_h + row * WIDTH
    return tl.load(base + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
