"""A grid's relative logits for queries, one axis at a time, and their gradients.

    A[i, c]  = scale * q_i . R[y_i, c]             y_i: the coordinate of query i on the axis
    dq_i     = scale * sum over c of dA[i, c] R[y_i, c]
    dR[y, c] = scale * sum over i with y_i = y of dA[i, c] q_i

A program has queries of one coordinate y: the tokens `prefix + (t // inner * n + y) * inner + t %
inner`, with n coordinates along the axis, `inner` tokens from one to the next, and t from 0 to
`others`, the tokens of each. `x (b, h, i, s)` has the coordinates of all axes, this one's from
column `column` on.

    q (m, d)    rows (n, d)    logits (m, n)
"""

import triton
import triton.language as tl

from .tiles import zeros


@triton.jit(do_not_specialize=("heads", "tokens", "prefix", "size", "inner", "others", "scale"))
def axis_logits_kernel(
    q, rows, out, heads, tokens, prefix, size, inner, others, width, column, scale,
    M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`M` queries of one coordinate and head.

    Reads:
        q: TokenTensor `(b, h, i, d)`.
        rows: TableTensor `(h or 1, n, n, d)`, contiguous but for the first axis.

    Writes:
        out: `(b, h, i, s)` float32.
    """
    head, y, t = _place(size, others, M)
    i = _token(t, y, prefix, size, inner)
    x = _load_vectors(q, head, heads, i, t < others, DIM, BLOCK)
    at = (head * tokens + i) * width + column
    for c0 in range(0, size, N):
        c = c0 + tl.arange(0, N)
        row = _load_rows(rows, head % heads, y, c, size, DIM, BLOCK)
        logits = tl.dot(x, tl.trans(row), input_precision="ieee") * scale
        inside = (t < others)[:, None] & (c < size)[None, :]
        tl.store(out + at[:, None] + c[None, :], logits, mask=inside)


@triton.jit(do_not_specialize=("heads", "tokens", "prefix", "size", "inner", "others", "scale"))
def axis_dq_kernel(
    d_logits, rows, sums, d_q, heads, tokens, prefix, size, inner, others, width, column, scale,
    M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr,
):  # fmt: skip
    """`M` queries of one coordinate and head; one launch for each axis, in order.

    Reads:
        d_logits: `(b, h, i, s)` float32.
        rows: as `axis_logits_kernel`.

    Adds to, unless `IS_FIRST`:
        sums: `(b, h, i, d)` float32; where `IS_LAST`, the sum goes to `d_q`, in its dtype.
    """
    head, y, t = _place(size, others, M)
    i = _token(t, y, prefix, size, inner)
    acc = zeros(M, BLOCK)
    for c0 in range(0, size, N):
        c = c0 + tl.arange(0, N)
        row = _load_rows(rows, head % heads, y, c, size, DIM, BLOCK)
        x = _load_logits(d_logits, head, i, t, c, tokens, others, size, width, column)
        acc += tl.dot(x.to(row.dtype), row, input_precision="ieee")
    columns = tl.arange(0, BLOCK)
    at = ((head * tokens + i) * DIM)[:, None] + columns[None, :]
    inside = (t < others)[:, None] & (columns < DIM)[None, :]
    acc *= scale
    if not IS_FIRST:
        acc += tl.load(sums + at, mask=inside, other=0.0)
    if IS_LAST:
        tl.store(d_q + at, acc.to(d_q.dtype.element_ty), mask=inside)
    else:
        tl.store(sums + at, acc, mask=inside)


@triton.jit(
    do_not_specialize=(
        "batch", "heads", "tokens", "prefix", "size", "inner", "others", "scale", "table_heads",
        "splits",
    )
)  # fmt: skip
def axis_drows_kernel(
    d_logits, q, sums, batch, heads, tokens, prefix, size, inner, others, width, column, scale,
    table_heads, splits,
    M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
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
    tiles = tl.cdiv(others, M)
    heads_of_table = heads // table_heads
    acc = zeros(N, BLOCK)
    for item in range(split, batch * heads_of_table * tiles, splits):
        t = item % tiles * M + tl.arange(0, M)
        h = table_head + item // tiles % heads_of_table
        head = tl.cast(item // tiles // heads_of_table, tl.int64) * heads + h
        i = _token(t, y, prefix, size, inner)
        x = _load_vectors(q, head, heads, i, t < others, DIM, BLOCK)
        d = _load_logits(d_logits, head, i, t, c, tokens, others, size, width, column)
        acc += tl.dot(tl.trans(d).to(x.dtype), x, input_precision="ieee")
    columns = tl.arange(0, BLOCK)
    first = (tl.cast(split * table_heads + table_head, tl.int64) * size + y) * size
    at = ((first + c) * DIM)[:, None] + columns[None, :]
    tl.store(sums + at, acc * scale, mask=(c < size)[:, None] & (columns < DIM)[None, :])


@triton.jit
def _place(size, others, M: tl.constexpr):
    """A program's head of all sequences, its coordinate, and which of the coordinate's tokens."""
    tiles = tl.cdiv(others, M)
    tile = tl.program_id(0) % tiles
    y = tl.program_id(0) // tiles % size
    head = tl.cast(tl.program_id(0) // tiles // size, tl.int64)
    return head, y, tile * M + tl.arange(0, M)


@triton.jit
def _token(t, y, prefix, size, inner):
    """The numbers of a coordinate's tokens `t`."""
    return prefix + (t // inner * size + y) * inner + t % inner


@triton.jit
def _load_vectors(x, head, heads, i, inside, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rows `i` of one head of the TokenTensor `x (b, h, i, DIM)`: `(len(i), BLOCK)`."""
    columns = tl.arange(0, BLOCK)
    base = x.ptr + head // heads * x.stride_b + head % heads * x.stride_h
    at = (tl.cast(i, tl.int64) * x.stride_n)[:, None] + columns[None, :]
    return tl.load(base + at, mask=inside[:, None] & (columns < DIM)[None, :], other=0.0)


@triton.jit
def _load_rows(rows, h, y, c, size, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """`R[y, c]` of one head: `(len(c), BLOCK)`."""
    columns = tl.arange(0, BLOCK)
    at = ((y * size + c) * DIM)[:, None] + columns[None, :]
    inside = (c < size)[:, None] & (columns < DIM)[None, :]
    return tl.load(rows.ptr + h * rows.stride_h + at, mask=inside, other=0.0)


@triton.jit
def _load_logits(x, head, i, t, c, tokens, others, size, width, column):
    """Columns `c` of one axis of rows `i` of `x (b, h, i, s)`: `(len(i), len(c))`."""
    at = (head * tokens + i) * width + column
    inside = (t < others)[:, None] & (c < size)[None, :]
    return tl.load(x + at[:, None] + c[None, :], mask=inside, other=0.0)
