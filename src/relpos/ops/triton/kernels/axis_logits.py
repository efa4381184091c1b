"""A grid's relative logits for queries, one axis at a time, and their gradients.

    A[i, c]  = scale * q_i . R[y_i, c]             y_i: the coordinate of query i on the axis
    dq_i     = scale * sum over c of dA[i, c] R[y_i, c]
    dR[y, c] = scale * sum over i with y_i = y of dA[i, c] q_i

A program has queries of one coordinate y, which are the tokens `prefix + (t // inner * n + y) *
inner + t % inner`, with n coordinates along the axis, `inner` tokens from one to the next, and t
from 0 to `others`, the tokens of each. Its tile has `T` of them of each of `M / T` heads, of those
that share the rows R; T is `M`, or the power of two from `others` on where that is less.
`x (b, h, i, s)` has the coordinates of all axes, this one's from column `column` on.

    q (m, d)    rows (n, d)    logits (m, n)
"""

import triton
import triton.language as tl

from .tiles import zeros


@triton.jit(
    do_not_specialize=(
        "batch", "heads", "table_heads", "tokens", "prefix", "size", "inner", "others", "scale",
    )
)  # fmt: skip
def axis_logits_kernel(
    q, rows, out, batch, heads, table_heads, tokens, prefix, size, inner, others, width, column,
    scale,
    M: tl.constexpr, T: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of queries of one coordinate; `table_heads` is 1 where heads share rows, else all.

    Reads:
        q: TokenTensor `(b, h, i, d)`.
        rows: TableTensor `(h or 1, n, n, d)`, contiguous but for the first axis.

    Writes:
        out: `(b, h, i, s)` float32.
    """
    tile, y, table_head = _tile(batch, heads, table_heads, size, others, M, T)
    b, h, t, known = _place(tile, table_head, batch, heads, table_heads, others, M, T)
    i = _token(t, y, prefix, size, inner)
    x = _load_vectors(q, b, h, i, known, DIM, BLOCK)
    at = ((b * heads + h) * tokens + i) * width + column
    for c0 in range(0, size, N):
        c = c0 + tl.arange(0, N)
        row = _load_rows(rows, table_head, y, c, size, DIM, BLOCK)
        logits = tl.dot(x, tl.trans(row), input_precision="ieee") * scale
        inside = known[:, None] & (c < size)[None, :]
        tl.store(out + at[:, None] + c[None, :], logits, mask=inside)


@triton.jit(
    do_not_specialize=(
        "batch", "heads", "table_heads", "tokens", "prefix", "size", "inner", "others", "scale",
    )
)  # fmt: skip
def axis_dq_kernel(
    d_logits, rows, sums, d_q, batch, heads, table_heads, tokens, prefix, size, inner, others,
    width, column, scale,
    M: tl.constexpr, T: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr,
):  # fmt: skip
    """A tile of queries of one coordinate; one launch for each axis, in order.

    Reads:
        d_logits: `(b, h, i, s)` float32.
        rows: as `axis_logits_kernel`.

    Adds to, unless `IS_FIRST`:
        sums: `(b, h, i, d)` float32; where `IS_LAST`, the sum goes to `d_q`, in its dtype.
    """
    tile, y, table_head = _tile(batch, heads, table_heads, size, others, M, T)
    b, h, t, known = _place(tile, table_head, batch, heads, table_heads, others, M, T)
    token = (b * heads + h) * tokens + _token(t, y, prefix, size, inner)
    acc = zeros(M, BLOCK)
    for c0 in range(0, size, N):
        c = c0 + tl.arange(0, N)
        row = _load_rows(rows, table_head, y, c, size, DIM, BLOCK)
        x = _load_logits(d_logits, token, known, c, size, width, column)
        acc += tl.dot(x.to(row.dtype), row, input_precision="ieee")
    columns = tl.arange(0, BLOCK)
    at = (token * DIM)[:, None] + columns[None, :]
    inside = known[:, None] & (columns < DIM)[None, :]
    acc *= scale
    if not IS_FIRST:
        acc += tl.load(sums + at, mask=inside, other=0.0)
    if IS_LAST:
        tl.store(d_q + at, acc.to(d_q.dtype.element_ty), mask=inside)
    else:
        tl.store(sums + at, acc, mask=inside)


@triton.jit(
    do_not_specialize=(
        "batch", "heads", "table_heads", "tokens", "prefix", "size", "inner", "others", "scale",
        "splits",
    )
)  # fmt: skip
def axis_drows_kernel(
    d_logits, q, sums, batch, heads, table_heads, tokens, prefix, size, inner, others, width,
    column, scale, splits,
    M: tl.constexpr, T: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The rows of `N` coordinates of keys and one of queries; one of `splits` parts of the queries.

    Reads:
        d_logits: `(b, h, i, s)` float32.
        q: TokenTensor `(b, h, i, d)`.

    Writes:
        sums: `(splits, table_heads, n, n, d)` float32; `table_heads` is 1 where heads share rows.
    """
    split = tl.program_id(0) % splits
    number = tl.program_id(0) // splits
    blocks = tl.cdiv(size, N)
    c = number % blocks * N + tl.arange(0, N)
    y = number // blocks % size
    table_head = number // blocks // size
    acc = zeros(N, BLOCK)
    tiles = _count_tiles(batch, heads, table_heads, others, M, T)
    for tile in range(split, tiles, splits):
        b, h, t, known = _place(tile, table_head, batch, heads, table_heads, others, M, T)
        i = _token(t, y, prefix, size, inner)
        x = _load_vectors(q, b, h, i, known, DIM, BLOCK)
        d = _load_logits(
            d_logits, (b * heads + h) * tokens + i, known, c, size, width, column
        )  # fmt: skip
        acc += tl.dot(tl.trans(d).to(x.dtype), x, input_precision="ieee")
    columns = tl.arange(0, BLOCK)
    first = (tl.cast(split * table_heads + table_head, tl.int64) * size + y) * size
    at = ((first + c) * DIM)[:, None] + columns[None, :]
    tl.store(sums + at, acc * scale, mask=(c < size)[:, None] & (columns < DIM)[None, :])


@triton.jit
def _tile(batch, heads, table_heads, size, others, M: tl.constexpr, T: tl.constexpr):
    """A program's tile of those of a coordinate, the coordinate, and the head of the rows."""
    tiles = _count_tiles(batch, heads, table_heads, others, M, T)
    number = tl.program_id(0) // tiles
    return tl.program_id(0) % tiles, number % size, number // size


@triton.jit
def _count_tiles(batch, heads, table_heads, others, M: tl.constexpr, T: tl.constexpr):
    """How many tiles hold the queries of a coordinate whose heads share rows."""
    return tl.cdiv(batch * (heads // table_heads), M // T) * tl.cdiv(others, T)


@triton.jit
def _place(
    tile, table_head, batch, heads, table_heads, others, M: tl.constexpr, T: tl.constexpr
):  # fmt: skip
    """The queries of a tile, `(M,)` each: sequence, head, number t, and whether there is one."""
    heads_of_table = heads // table_heads
    a = tl.arange(0, M)
    tiles_of_head = tl.cdiv(others, T)
    head = tile // tiles_of_head * (M // T) + a // T
    t = tile % tiles_of_head * T + a % T
    known = (head < batch * heads_of_table) & (t < others)
    # Of 64 bits, as what is made of them may have to be.
    b = tl.cast(head // heads_of_table, tl.int64)
    h = tl.cast(table_head + head % heads_of_table, tl.int64)
    return b, h, t, known


@triton.jit
def _token(t, y, prefix, size, inner):
    """The numbers of a coordinate's tokens `t`."""
    return prefix + (t // inner * size + y) * inner + t % inner


@triton.jit
def _load_vectors(x, b, h, i, known, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of the TokenTensor `x (b, h, i, DIM)`, where they are known: `(len(i), BLOCK)`."""
    columns = tl.arange(0, BLOCK)
    row = b * x.stride_b + h * x.stride_h + tl.cast(i, tl.int64) * x.stride_n
    at = row[:, None] + columns[None, :]
    return tl.load(x.ptr + at, mask=known[:, None] & (columns < DIM)[None, :], other=0.0)


@triton.jit
def _load_rows(rows, h, y, c, size, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """`R[y, c]` of one head: `(len(c), BLOCK)`."""
    columns = tl.arange(0, BLOCK)
    at = ((y * size + c) * DIM)[:, None] + columns[None, :]
    inside = (c < size)[:, None] & (columns < DIM)[None, :]
    return tl.load(rows.ptr + tl.cast(h, tl.int64) * rows.stride_h + at, mask=inside, other=0.0)


@triton.jit
def _load_logits(x, token, known, c, size, width, column):
    """Columns `c` of one axis of rows `token` of `x (b, h, i, s)`: `(len(token), len(c))`."""
    at = (token * width + column)[:, None] + c[None, :]
    return tl.load(x + at, mask=known[:, None] & (c < size)[None, :], other=0.0)
