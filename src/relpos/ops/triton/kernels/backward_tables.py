"""Backward, one chunk of the tables' rows at a time: their gradients, without atomics.

    dK_r = scale * sum dS_ij p_i    dB_r = sum dS_ij           over all pairs with j - i -> r
    dQ_r = scale * sum dS_ij k_j    dV_r = sum P_ij dO_i

A program owns rows strictly between the first and the last: there each query has exactly one key at
an offset. Its tile is by offset, `(m queries, n offsets)`, in which the tables lie straight and the
keys are sheared; it walks over the tiles of queries, and over the heads and sequences that share
the tables. The work is dealt out to `splits` programs, whose sums are added afterwards in a fixed
order. The two end rows, which many keys of a query select, come from `end_rows`
(`backward_dq.py`, `backward_dkdv.py`) and the second kernel here.

    q (m, d)    q_rel (m, rel_dim)    d_o (m, dv)    k (n, d)    v (n, dv)    j (m, n)
    scores, weights, weights_after_dropout, d_scores (m, n): query a, offset r, key a + r of the
    tile
    acc_keys (n, rel_dim)    acc_queries (n, d)    acc_bias (n,)    acc_values (n, dv)
"""

import triton
import triton.language as tl

from ..kernel_args import KernelSizes
from .regions import BAND, has_pairs
from .scores import load_row_stats, tile_d_scores, tile_exponentials, tile_scores
from .shear import by_offset, shear, shear_transposed
from .structs import KernelArgs, Pairs
from .tables import KEYS, QUERIES, VALUES, dot_rows, load_rows
from .tiles import (
    load_keys,
    load_outputs,
    load_queries,
    load_tokens,
    load_values,
    zeros,
    zeros_1d,
)


@triton.jit(do_not_specialize=(*KernelSizes._fields, "batch", "table_heads", "splits"))
def dtables_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    softmax, d_out, delta, d_keys, d_queries, d_bias, d_values,
    batch, table_heads, splits,
    SPEC: tl.constexpr, NEEDS_D_KEYS: tl.constexpr, NEEDS_D_QUERIES: tl.constexpr,
    NEEDS_D_BIAS: tl.constexpr, NEEDS_D_VALUES: tl.constexpr,
):  # fmt: skip
    """One chunk of the tables' rows, one of `splits` parts.

    Reads, besides `inputs`:
        softmax: `(2, b, h, i)`, of the forward kernel.
        d_out: TokenTensor `(b, h, i, dv)`.
        delta: `(b, h, i)`, of the dq kernel.
        batch: sequences; `table_heads` is 1 where heads share the tables, else all.

    Writes, in float32, where they are needed:
        d_keys: `(splits, table_heads, rows, rel_dim)`.
        d_queries: `(splits, table_heads, rows, d)`.
        d_bias: `(splits, table_heads, rows)`.
        d_values: `(splits, table_heads, rows, dv)`.
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    num_score_rows = tl.cast(batch * args.inputs.heads, tl.int64) * args.seqlen_q
    a = tl.arange(0, SPEC.block_m)
    r = tl.arange(0, SPEC.block_n)
    tile = tl.program_id(0)
    split = tile % splits
    table_head = tile // splits % table_heads
    number = tile // splits // table_heads
    # The window's rows without the first and the last, one after another.
    entry = 1 + number * SPEC.block_n
    offset = args.table_first + entry
    count = tl.minimum(args.table_rows - 1 - entry, SPEC.block_n)

    if NEEDS_D_KEYS:
        acc_keys = zeros(SPEC.block_n, SPEC.block_rel_dim)
    if NEEDS_D_QUERIES:
        acc_queries = zeros(SPEC.block_n, SPEC.block_head_dim)
    if NEEDS_D_BIAS:
        acc_bias = zeros_1d(SPEC.block_n)
    if NEEDS_D_VALUES:
        acc_values = zeros(SPEC.block_n, SPEC.block_value_dim)

    # The tiles of queries that have a key at one of these offsets.
    first_tile = tl.maximum(-args.query_start - offset - (SPEC.block_n - 1), 0) // SPEC.block_m
    last = tl.minimum(args.seqlen_k - args.query_start - offset, args.seqlen_q)
    tiles = tl.maximum(tl.cdiv(tl.maximum(last, 0), SPEC.block_m) - first_tile, 0)
    if SPEC.is_causal:
        tiles = tl.where(offset > 0, 0, tiles)
    heads = args.inputs.heads // table_heads
    for item in range(split, batch * heads * tiles, splits):
        i0 = (first_tile + item % tiles) * SPEC.block_m
        b = item // tiles // heads
        h = table_head + item // tiles % heads
        g = h // args.inputs.heads_per_kv_head
        key0 = args.query_start + i0 + offset
        if has_pairs(args, b, i0, key0, key0 + SPEC.block_m + SPEC.block_n - 1, SPEC):
            i = i0 + a
            q, q_rel = load_queries(args, b, h, i, SPEC)
            d_o = load_outputs(d_out, args, b, h, i, SPEC)
            dot_blocks = ()
            d_out_blocks = ()
            for part in tl.static_range(SPEC.block_m // SPEC.block_n + 1):
                keys = key0 + part * SPEC.block_n + r
                k = load_keys(args, b, g, keys, SPEC)
                v = load_values(args, b, g, keys, SPEC)
                dots = tl.dot(q, tl.trans(k), input_precision=SPEC.precision)
                dot_blocks = dot_blocks + (dots,)
                dots = tl.dot(d_o, tl.trans(v), input_precision=SPEC.precision)
                d_out_blocks = d_out_blocks + (dots,)
            dots = by_offset(dot_blocks)
            d_out_dots = by_offset(d_out_blocks)
            c = a[:, None] + r[None, :]
            pairs = Pairs(b, h, i[:, None], key0 + c, key0, c)
            if SPEC.has_keys:
                dots += dot_rows(args, KEYS, h, q_rel, entry + r, SPEC)
            if SPEC.has_queries:
                dots += _dot_queries(args, b, h, g, key0, entry, SPEC)
            if SPEC.has_values:
                d_out_dots += dot_rows(args, VALUES, h, d_o, entry + r, SPEC)
            scores, slope = tile_scores(args, pairs, dots, None, BAND, True, SPEC)
            inside = (r < count)[None, :] & (i < args.seqlen_q)[:, None]
            scores = tl.where(inside, scores, float("-inf"))
            stats = load_row_stats(softmax, delta, args, b, h, i, num_score_rows)
            exps = tile_exponentials(args, scores, stats, SPEC)
            weights_after_dropout, d_scores = tile_d_scores(
                args, pairs, stats, exps, slope, d_out_dots, None, False, SPEC
            )

            if NEEDS_D_KEYS:
                d_scores_transposed = tl.trans(d_scores).to(q_rel.dtype)
                acc_keys += tl.dot(d_scores_transposed, q_rel, input_precision=SPEC.precision)
            if NEEDS_D_BIAS:
                acc_bias += tl.sum(d_scores, 0)
            if NEEDS_D_VALUES:
                weights_transposed = tl.trans(weights_after_dropout).to(d_o.dtype)
                acc_values += tl.dot(weights_transposed, d_o, input_precision=SPEC.precision)
            if NEEDS_D_QUERIES:
                acc_queries += times_keys(args, b, g, key0, d_scores, SPEC)

    first_row = tl.cast(split * table_heads + table_head, tl.int64) * args.table_rows
    row = first_row + entry + r
    inside = r < count
    if NEEDS_D_KEYS:
        acc_keys *= args.inputs.scale
        store_sums(d_keys, row, inside, acc_keys, SPEC.rel_dim, SPEC.block_rel_dim)
    if NEEDS_D_QUERIES:
        acc_queries *= args.inputs.scale
        store_sums(d_queries, row, inside, acc_queries, SPEC.head_dim, SPEC.block_head_dim)
    if NEEDS_D_BIAS:
        tl.store(d_bias + row, acc_bias, mask=inside)
    if NEEDS_D_VALUES:
        store_sums(d_values, row, inside, acc_values, SPEC.value_dim, SPEC.block_value_dim)


@triton.jit
def _dot_queries(args, b, h, g, key0, entry, SPEC: tl.constexpr):
    """`k_j . Q[j - i]` of a tile by offset, `(m, n)`: in two blocks of m keys, from `key0` on."""
    r = tl.arange(0, SPEC.block_n)
    s = tl.arange(0, SPEC.block_m)
    rows = load_rows(args, QUERIES, h, entry + r, SPEC)
    k = load_keys(args, b, g, key0 + s, SPEC)
    nearer = tl.dot(rows, tl.trans(k), input_precision=SPEC.precision)
    k = load_keys(args, b, g, key0 + SPEC.block_m + s, SPEC)
    farther = tl.dot(rows, tl.trans(k), input_precision=SPEC.precision)
    return shear(nearer, farther, r, TRANSPOSED=True)


@triton.jit
def times_keys(args, b, g, key0, x, SPEC: tl.constexpr):
    """`sum_i x_ij k_j` for each offset of the same tile `x (m, n)`: `(n, d)`."""
    r = tl.arange(0, SPEC.block_n)
    s = tl.arange(0, SPEC.block_m)
    by_key = shear_transposed(x, -r + SPEC.block_m, 1)
    is_farther = s[None, :] < r[:, None]
    k = load_keys(args, b, g, key0 + s, SPEC)
    nearer = tl.where(is_farther, 0.0, by_key).to(k.dtype)
    total = tl.dot(nearer, k, input_precision=SPEC.precision)
    k = load_keys(args, b, g, key0 + SPEC.block_m + s, SPEC)
    farther = tl.where(is_farther, by_key, 0.0).to(k.dtype)
    return total + tl.dot(farther, k, input_precision=SPEC.precision)


@triton.jit
def store_sums(x, row, inside, sums, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write `sums (n, BLOCK)` to the rows `row (n,)` of `x (rows, WIDTH)`."""
    columns = tl.arange(0, BLOCK)
    tl.store(
        x + row[:, None] * WIDTH + columns[None, :],
        sums,
        mask=inside[:, None] & (columns < WIDTH)[None, :],
    )


@triton.jit
def load_sums(x, row, inside, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The same from there: `(n, BLOCK)`."""
    columns = tl.arange(0, BLOCK)
    return tl.load(
        x + row[:, None] * WIDTH + columns[None, :],
        mask=inside[:, None] & (columns < WIDTH)[None, :],
        other=0.0,
    )


@triton.jit(
    do_not_specialize=("batch", "heads", "heads_per_x_head", "count", "splits", "table_heads")
)
def end_rows_kernel(
    numbers, x, sums, batch, heads, heads_per_x_head, count, splits, table_heads, scale,
    M: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """`scale sum_n numbers[end, b, h, n] x[b, h // heads_per_x_head, n]` for both end rows.

    Reads:
        numbers: `(2, b, h, count)` float32: of the tables' first row, and of their last.
        x: TokenTensor `(b, h // heads_per_x_head, count, WIDTH)`.

    Writes:
        sums: `(splits, table_heads, 2, WIDTH)` float32.
    """
    split = tl.program_id(0) % splits
    table_head = tl.program_id(0) // splits
    first_sum = zeros_1d(BLOCK)
    last_sum = zeros_1d(BLOCK)
    tiles = tl.cdiv(count, M)
    heads_per_table_head = heads // table_heads
    for item in range(split, batch * heads_per_table_head * tiles, splits):
        tokens = item % tiles * M + tl.arange(0, M)
        b = item // tiles // heads_per_table_head
        h = table_head + item // tiles % heads_per_table_head
        at = numbers + (tl.cast(b, tl.int64) * heads + h) * count + tokens
        ends_apart = tl.cast(batch * heads, tl.int64) * count
        first = tl.load(at, mask=tokens < count, other=0.0)
        last = tl.load(at + ends_apart, mask=tokens < count, other=0.0)
        # A token that counts for nothing is not read: it may be anything.
        tokens = tl.where((first == 0) & (last == 0), -1, tokens)
        rows = load_tokens(x, b, h // heads_per_x_head, tokens, count, WIDTH, BLOCK, SPEC)
        rows = rows.to(tl.float32)
        first_sum += tl.sum(rows * first[:, None], 0)
        last_sum += tl.sum(rows * last[:, None], 0)
    columns = tl.arange(0, BLOCK)
    base = sums + tl.cast(split * table_heads + table_head, tl.int64) * 2 * WIDTH
    tl.store(base + columns, first_sum * scale, mask=columns < WIDTH)
    tl.store(base + WIDTH + columns, last_sum * scale, mask=columns < WIDTH)
