"""Tiles of tensors: loads and stores of rows of tokens and of numbers by query.

`WIDTH` is a tensor's last axis, `BLOCK` the columns of its tile: those from `WIDTH` on are zeros.
Tiles of tokens are `(tokens, BLOCK)`: `q (m, d)`, `k (n, d)`, `v (n, dv)`, `d_out (m, dv)`.

A tile that a loop multiplies at the end of a turn, and has in registers too, is to be loaded twice,
the second time with `AGAIN`. For one that is wanted in both ways Triton's pipeline takes a buffer
less, and the next copy overwrites it while the product still reads: `scripts/pipelines.py` tells.
"""

import triton
import triton.language as tl


@triton.jit
def zeros(M: tl.constexpr, N: tl.constexpr):
    """`(M, N)` in float32."""
    return tl.zeros((M, N), tl.float32)


@triton.jit
def zeros_1d(N: tl.constexpr):
    """`(N,)` in float32."""
    return tl.zeros((N,), tl.float32)


@triton.jit
def load_tokens(
    x, b, h, tokens, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPEC: tl.constexpr,
    AGAIN: tl.constexpr = False,
):  # fmt: skip
    """Rows `tokens` of `x (b, h, count, WIDTH)`: `(len(tokens), BLOCK)`, zeros outside."""
    columns = tl.arange(0, BLOCK)
    base = x.ptr + tl.cast(b, tl.int64) * x.stride_b + tl.cast(h, tl.int64) * x.stride_h
    inside = ((tokens >= 0) & (tokens < count))[:, None]
    if WIDTH < BLOCK:
        inside = inside & (columns < WIDTH)[None, :]
    if SPEC.int64_offsets:
        tokens = tl.cast(tokens, tl.int64)
    return tl.load(
        base + (tokens[:, None] * x.stride_n + columns[None, :]), mask=inside, other=0.0,
        # Of two loads alike the compiler would make one.
        eviction_policy="evict_last" if AGAIN else "",
    )  # fmt: skip


@triton.jit
def store_tokens(
    x, b, h, tokens, count, tile, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPEC: tl.constexpr
):
    """Write `tile (len(tokens), BLOCK)` to rows `tokens` of `x`, in its dtype."""
    columns = tl.arange(0, BLOCK)
    base = x.ptr + tl.cast(b, tl.int64) * x.stride_b + tl.cast(h, tl.int64) * x.stride_h
    inside = (tokens < count)[:, None] & (columns < WIDTH)[None, :]
    if SPEC.int64_offsets:
        tokens = tl.cast(tokens, tl.int64)
    tl.store(
        base + (tokens[:, None] * x.stride_n + columns[None, :]),
        tile.to(x.ptr.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def load_queries(args, b, h, i, SPEC: tl.constexpr, AGAIN: tl.constexpr = False):
    """`q (m, d)`, and what is dotted with the table of keys: `q_rel (m, rel_dim)`, or `q` again."""
    q = load_tokens(
        args.inputs.q, b, h, i, args.seqlen_q, SPEC.head_dim, SPEC.block_head_dim, SPEC, AGAIN
    )
    q_rel = q
    if SPEC.has_q_rel:
        q_rel = load_tokens(
            args.inputs.q_rel, b, h, i, args.seqlen_q, SPEC.rel_dim, SPEC.block_rel_dim, SPEC,
            AGAIN,
        )  # fmt: skip
    return q, q_rel


@triton.jit
def load_outputs(x, args, b, h, i, SPEC: tl.constexpr, AGAIN: tl.constexpr = False):
    """Rows `i` of `x (b, h, i, dv)`, the output or its gradient: `(m, dv)`."""
    return load_tokens(x, b, h, i, args.seqlen_q, SPEC.value_dim, SPEC.block_value_dim, SPEC, AGAIN)


@triton.jit
def load_keys(args, b, g, j, SPEC: tl.constexpr, AGAIN: tl.constexpr = False):
    """Keys `j`: `(n, d)`; zeros for those that no query ever sees."""
    return _load_seen(args.inputs.k, args, b, g, j, SPEC.head_dim, SPEC.block_head_dim, SPEC, AGAIN)


@triton.jit
def load_values(args, b, g, j, SPEC: tl.constexpr):
    """Values `j`: `(n, dv)`; zeros for those that no query ever sees."""
    return _load_seen(
        args.inputs.v, args, b, g, j, SPEC.value_dim, SPEC.block_value_dim, SPEC, False
    )


@triton.jit
def _load_seen(
    x, args, b, g, j, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPEC: tl.constexpr,
    AGAIN: tl.constexpr,
):  # fmt: skip
    """Rows `j` of `x (b, g, j, WIDTH)`; zeros for those that no query ever sees.

    What lies there may be anything, and a weight of 0 would not make it 0; but where ranges along
    the axes of a grid hide it.
    """
    count = args.seqlen_k
    if SPEC.is_causal:
        count = tl.minimum(count, args.query_start + args.seqlen_q)
    if SPEC.has_max_offset:
        count = tl.minimum(count, args.query_start + args.seqlen_q + args.max_offset)
    if SPEC.has_min_offset:
        j = tl.where(j >= args.query_start + args.min_offset, j, -1)
    if SPEC.has_key_ranges:
        in_ranges = args.inputs.keys_in_ranges + tl.cast(b, tl.int64) * args.seqlen_k
        seen = tl.load(in_ranges + j, mask=(j >= 0) & (j < count), other=0)
        j = tl.where(seen != 0, j, -1)
    if SPEC.has_documents:
        documents = args.inputs.documents
        base = documents.ptr + tl.cast(b, tl.int64) * documents.stride_b
        document = tl.load(base + j, mask=(j >= 0) & (j < count), other=-1)
        j = tl.where(document >= 0, j, -1)
    return load_tokens(x, b, g, j, count, WIDTH, BLOCK, SPEC, AGAIN)


@triton.jit
def load_by_query(x, args, b, h, i, other):
    """Numbers of the queries `i (m,)` from `x (b, h, i)`: `(m,)`; `other` beyond the last."""
    head = (tl.cast(b, tl.int64) * args.inputs.heads + h) * args.seqlen_q
    return tl.load(x + head + i, mask=i < args.seqlen_q, other=other)


@triton.jit
def store_by_query(x, args, b, h, i, numbers):
    """Write `numbers (m,)` of the queries `i` to `x (b, h, i)`."""
    head = (tl.cast(b, tl.int64) * args.inputs.heads + h) * args.seqlen_q
    tl.store(x + head + i, numbers, mask=i < args.seqlen_q)


@triton.jit
def rounded_off_scale(dtype: tl.constexpr):
    """What `rounded_off` is kept times (`ops/rounded_off.py`)."""
    return 2048.0 if dtype == tl.float16 else 1.0


@triton.jit
def what_rounding_takes(x, dtype: tl.constexpr):
    """Of float32 numbers rounded to 16 bits: in `rounded_off`, as it is kept."""
    return (x - x.to(dtype).to(tl.float32)) * rounded_off_scale(dtype)


@triton.jit
def stored_at(stored, head, row, column, SPEC: tl.constexpr):
    """Where the tile `(m, n)` from `row` and `column` on is in `StoredScores`."""
    a = row + tl.arange(0, SPEC.block_m)
    c = column + tl.arange(0, SPEC.block_n)
    first = tl.cast(head, tl.int64) * stored.stride_h
    return first + (a[:, None] * stored.stride_i + c[None, :])
