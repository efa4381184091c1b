"""Backward from stored `dS`, where tables have a row for many offsets.

    dq_i = scale * (sum_j dS_ij k_j + sum_j dS_ij K[j-i])
    dK_r = scale * sum dS_ij p_i                               over all pairs with j - i -> r
    dQ_r = scale * sum dS_ij k_j    dV_r = sum P_ij dO_i

The dkdv kernel has found `dS` of a chunk of pairs, and where needed the weights, and stored them in
the dtype in which they are multiplied (`../stored_scores.py`). What is left are products. A tile by
offset, `(n offsets, m queries)`, is read where it lies: query a's offset r is key a + r of it, and
so one number farther on for each query. Nothing is sheared besides, but for the table of queries.

    q, acc (m, d)    q_rel, acc_rel (m, rel_dim)    d_o (m, dv)    k (n, d)
    d_scores (m, n) by key, (n, m) by offset
    acc_keys (n, rel_dim)    acc_queries (n, d)    acc_values (n, dv)
"""

import triton
import triton.language as tl

from ..kernel_args import KernelSizes
from .backward_tables import load_sums, store_sums, times_keys
from .regions import BAND, LEFT, RIGHT, end_row_sums, end_table_row, key_regions, selects_end_row
from .scores import delta_of_outputs
from .structs import KernelArgs, Pairs
from .tables import KEYS, load_row, times_rows
from .tiles import (
    load_by_query,
    load_keys,
    load_outputs,
    load_queries,
    store_by_query,
    store_tokens,
    stored_at,
    zeros,
    zeros_1d,
)


@triton.jit(do_not_specialize=KernelSizes._fields)
def delta_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    out, rounded_off, softmax, d_out, d_lse, delta,
    SPEC: tl.constexpr, HAS_D_LSE: tl.constexpr,
):  # fmt: skip
    """`delta (b, h, i)` of one tile of queries; arguments as the dq kernel's (`backward_dq.py`)."""
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    tiles_per_head = tl.cdiv(args.seqlen_q, SPEC.block_m)
    num_score_rows = tl.cast(args.num_tiles // tiles_per_head, tl.int64) * args.seqlen_q
    head = tl.program_id(0) // tiles_per_head
    b = head // args.inputs.heads
    h = head % args.inputs.heads
    i = tl.program_id(0) % tiles_per_head * SPEC.block_m + tl.arange(0, SPEC.block_m)
    d_o = load_outputs(d_out, args, b, h, i, SPEC)
    row_delta = delta_of_outputs(out, rounded_off, d_o, d_lse, args, b, h, i, HAS_D_LSE, SPEC)
    inverse_sum = load_by_query(softmax + num_score_rows, args, b, h, i, 0.0)
    # What flows into a row without keys may be NaN.
    store_by_query(delta, args, b, h, i, tl.where(inverse_sum > 0, row_delta, 0.0))


@triton.jit(
    do_not_specialize=(
        *KernelSizes._fields, "batch", "first_kv_head", "count", "i_begin", "i_end", "splits",
    )
)  # fmt: skip
def stored_dq_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    stored, batch, first_kv_head, count, i_begin, i_end, d_q, d_q_rel, end_rows, splits,
    SPEC: tl.constexpr, NEEDS_D_Q_REL: tl.constexpr, NEEDS_END_WEIGHTS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """One tile of the chunk's queries, of one head, and one of `splits` parts of its keys.

    Reads, besides `inputs`:
        stored: StoredScores of the chunk; its tiles are as high and as wide as here.
        batch: sequences.
        first_kv_head: the chunk's first, as the dkdv kernel numbers them; of `count`.
        i_begin: the chunk's first query; `i_end` is the one after its last.

    Writes:
        d_q: TokenTensor `(b, h, i, d)`.
        d_q_rel: TokenTensor `(b, h, i, rel_dim)` where `NEEDS_D_Q_REL`.
        end_rows: as the dq kernel; the weights' where `NEEDS_END_WEIGHTS`.

    Where `SPLIT`, all three have the parts in place of b, and heads and queries of the chunk alone:
    `(splits, h, i, d)`, `(splits, h, i, rel_dim)` and `(4, splits, h, i)`.
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    TIMES_KEYS: tl.constexpr = SPEC.has_keys and (NEEDS_D_Q_REL or not SPEC.has_q_rel)
    tiles_per_head = tl.cdiv(i_end - i_begin, SPEC.block_m)
    split = tl.program_id(0) % splits
    tile = tl.program_id(0) // splits
    head = tile // tiles_per_head
    b, h, g = _head_of(head, batch, first_kv_head, args)
    i0 = i_begin + (tiles_per_head - 1 - tile % tiles_per_head) * SPEC.block_m
    i = i0 + tl.arange(0, SPEC.block_m)
    c = tl.arange(0, SPEC.block_n)
    acc = zeros(SPEC.block_m, SPEC.block_head_dim)
    first_d_scores = zeros_1d(SPEC.block_m)
    last_d_scores = zeros_1d(SPEC.block_m)
    first_weights = zeros_1d(SPEC.block_m)
    last_weights = zeros_1d(SPEC.block_m)
    regions = key_regions(args, b, i0, SPEC)
    first_tile, end_tile = _part(
        regions.begin // SPEC.block_n, regions.end // SPEC.block_n, split, splits
    )
    for key_tile in tl.range(first_tile, end_tile, num_stages=_stages(SPEC)):
        j0 = key_tile * SPEC.block_n  # so the compiler knows where whole words begin
        at = stored_at(stored, head, i0 - i_begin, j0, SPEC)
        d_scores = tl.load(stored.d_scores + at)
        j = j0 + c
        k = load_keys(args, b, g, j, SPEC)
        acc += tl.dot(d_scores, k, input_precision=SPEC.precision)
        if selects_end_row(args, i0, j0, SPEC):
            pairs = Pairs(b, h, i[:, None], j[None, :], j0, c[None, :])
            again = tl.load(stored.d_scores + at, eviction_policy="evict_last")  # as in `tiles.py`
            first, last = end_row_sums(args, pairs, again.to(tl.float32), 1, BAND)
            first_d_scores += first
            last_d_scores += last
            if NEEDS_END_WEIGHTS:
                weights = tl.load(stored.weights + at).to(tl.float32)
                first, last = end_row_sums(args, pairs, weights, 1, BAND)
                first_weights += first
                last_weights += last
    if TIMES_KEYS:
        acc_rel = zeros(SPEC.block_m, SPEC.block_rel_dim)
        # The table's inner rows that some pair of the tile selects.
        row_of_key_0 = -(args.query_start + i0) - args.table_first
        lowest = tl.maximum(row_of_key_0 - (SPEC.block_m - 1), 1)
        end = tl.minimum(row_of_key_0 + args.seqlen_k, args.table_rows - 1)
        first_tile, end_tile = _part(0, tl.cdiv(end - lowest, SPEC.block_n), split, splits)
        row = lowest + first_tile * SPEC.block_n + c
        key0 = lowest + first_tile * SPEC.block_n - row_of_key_0
        d_scores = _load_by_offset(
            stored.d_scores, stored, head, i0 - i_begin, key0, row < end, SPEC
        )
        for _ in range(first_tile, end_tile):
            key0 += SPEC.block_n
            ahead = _load_by_offset(
                stored.d_scores, stored, head, i0 - i_begin, key0, row + SPEC.block_n < end, SPEC
            )
            acc_rel += times_rows(args, KEYS, h, tl.trans(d_scores), row, SPEC)
            row += SPEC.block_n
            d_scores = ahead
        first_row = load_row(args, KEYS, h, end_table_row(args, LEFT), SPEC)
        last_row = load_row(args, KEYS, h, end_table_row(args, RIGHT), SPEC)
        acc_rel += first_d_scores[:, None] * first_row[None, :]
        acc_rel += last_d_scores[:, None] * last_row[None, :]
        if not SPEC.has_q_rel:
            acc += acc_rel
    # Where the results are.
    queries_there = args.seqlen_q
    heads_there = args.inputs.heads
    rows = tl.cast(batch * heads_there, tl.int64) * queries_there
    if SPLIT:
        b, h, i = split, head, i - i_begin
        queries_there = i_end - i_begin
        heads_there = count * args.inputs.heads_per_kv_head
        rows = tl.cast(splits * heads_there, tl.int64) * queries_there
    scale = args.inputs.scale
    store_tokens(
        d_q, b, h, i, queries_there, acc * scale, SPEC.head_dim, SPEC.block_head_dim, SPEC
    )  # fmt: skip
    if TIMES_KEYS and SPEC.has_q_rel:
        store_tokens(
            d_q_rel, b, h, i, queries_there, acc_rel * scale, SPEC.rel_dim, SPEC.block_rel_dim,
            SPEC,
        )  # fmt: skip
    at = end_rows + (tl.cast(b, tl.int64) * heads_there + h) * queries_there + i
    inside = i < queries_there
    tl.store(at, first_d_scores, mask=inside)
    tl.store(at + rows, last_d_scores, mask=inside)
    if NEEDS_END_WEIGHTS:
        tl.store(at + 2 * rows, first_weights, mask=inside)
        tl.store(at + 3 * rows, last_weights, mask=inside)


@triton.jit(
    do_not_specialize=(
        *KernelSizes._fields, "batch", "first_kv_head", "count", "i_begin", "i_end", "splits",
    )
)  # fmt: skip
def stored_dtables_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    stored, batch, first_kv_head, count, i_begin, i_end, d_out,
    d_keys, d_queries, d_values, table_heads, splits,
    SPEC: tl.constexpr, NEEDS_D_KEYS: tl.constexpr, NEEDS_D_QUERIES: tl.constexpr,
    NEEDS_D_VALUES: tl.constexpr,
):  # fmt: skip
    """Rows of the tables between the first and the last, one of `splits` parts of the chunk.

    A program has n rows, of one head if the tables have heads; heads of the chunk come in turn.

    Reads, besides `inputs`:
        stored: StoredScores of the chunk.
        batch: sequences.
        first_kv_head: the chunk's first, as the dkdv kernel numbers them; of `count`.
        i_begin: the chunk's first query; `i_end` is the one after its last.
        d_out: TokenTensor `(b, h, i, dv)`.

    Adds to, in float32, where they are needed:
        d_keys: `(splits, table_heads, rows, rel_dim)`.
        d_queries: `(splits, table_heads, rows, d)`.
        d_values: `(splits, table_heads, rows, dv)`.
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    heads_per_kv_head = args.inputs.heads_per_kv_head
    r = tl.arange(0, SPEC.block_n)
    split = tl.program_id(0) % splits
    number = tl.program_id(0) // splits
    # The chunk's query heads that the program sums: `step` apart, from `first_head` on.
    blocks_per_head = tl.cdiv(args.table_rows - 2, SPEC.block_n)
    row0 = 1 + number % blocks_per_head * SPEC.block_n
    table_head = 0
    first_head = 0
    heads = count * heads_per_kv_head
    step = 1
    if table_heads > 1:
        g = first_kv_head // batch + number // blocks_per_head // heads_per_kv_head
        in_group = number // blocks_per_head % heads_per_kv_head
        first = tl.maximum(g * batch - first_kv_head, 0)
        end = tl.minimum((g + 1) * batch - first_kv_head, count)
        table_head = g * heads_per_kv_head + in_group
        first_head = first * heads_per_kv_head + in_group
        heads = end - first
        step = heads_per_kv_head
    row = row0 + r
    num_rows = args.table_rows - 1
    inside_rows = row < num_rows
    of_table = tl.cast(split * table_heads + table_head, tl.int64) * args.table_rows
    at_row = of_table + row

    if NEEDS_D_KEYS:
        acc_keys = zeros(SPEC.block_n, SPEC.block_rel_dim)
    if NEEDS_D_QUERIES:
        acc_queries = zeros(SPEC.block_n, SPEC.block_head_dim)
    if NEEDS_D_VALUES:
        acc_values = zeros(SPEC.block_n, SPEC.block_value_dim)

    # The chunk's tiles of queries that have a key at one of these offsets.
    key_of_query_0 = args.query_start + args.table_first + row0
    first_query = tl.maximum(-key_of_query_0 - (SPEC.block_n - 1), i_begin)
    first_tile = (first_query - i_begin) // SPEC.block_m
    end_query = tl.minimum(args.seqlen_k - key_of_query_0, i_end)
    end_tile = tl.cdiv(end_query - i_begin, SPEC.block_m)
    for turn in range(heads):
        head = first_head + turn * step
        b, h, g = _head_of(head, batch, first_kv_head, args)
        # Parts begin with other tiles in each head, so that all get as many.
        tile0 = first_tile + (split + turn) % splits
        row_i = tile0 * SPEC.block_m  # of the chunk
        inside = row < tl.where(tile0 < end_tile, num_rows, 0)
        key0 = key_of_query_0 + i_begin + row_i
        if NEEDS_D_KEYS or NEEDS_D_QUERIES:
            d_scores = _load_by_offset(stored.d_scores, stored, head, row_i, key0, inside, SPEC)
        if NEEDS_D_VALUES:
            weights = _load_by_offset(stored.weights, stored, head, row_i, key0, inside, SPEC)
        for tile in range(tile0, end_tile, splits):
            i0 = i_begin + tile * SPEC.block_m
            i = i0 + tl.arange(0, SPEC.block_m)
            row_i += splits * SPEC.block_m
            next_key0 = key_of_query_0 + i_begin + row_i
            inside = row < tl.where(tile + splits < end_tile, num_rows, 0)
            if NEEDS_D_KEYS or NEEDS_D_QUERIES:
                d_scores_ahead = _load_by_offset(
                    stored.d_scores, stored, head, row_i, next_key0, inside, SPEC
                )
            if NEEDS_D_VALUES:
                weights_ahead = _load_by_offset(
                    stored.weights, stored, head, row_i, next_key0, inside, SPEC
                )
            if NEEDS_D_KEYS:
                _, q_rel = load_queries(args, b, h, i, SPEC)
                acc_keys += tl.dot(d_scores, q_rel, input_precision=SPEC.precision)
            if NEEDS_D_VALUES:
                d_o = load_outputs(d_out, args, b, h, i, SPEC)
                acc_values += tl.dot(weights, d_o, input_precision=SPEC.precision)
                weights = weights_ahead
            if NEEDS_D_QUERIES:
                key0 = key_of_query_0 + i0
                by_query = tl.trans(d_scores).to(tl.float32)
                acc_queries += times_keys(args, b, g, key0, by_query, SPEC)
            if NEEDS_D_KEYS or NEEDS_D_QUERIES:
                d_scores = d_scores_ahead

    if NEEDS_D_KEYS:
        acc_keys *= args.inputs.scale
        acc_keys += load_sums(d_keys, at_row, inside_rows, SPEC.rel_dim, SPEC.block_rel_dim)
        store_sums(d_keys, at_row, inside_rows, acc_keys, SPEC.rel_dim, SPEC.block_rel_dim)
    if NEEDS_D_QUERIES:
        acc_queries *= args.inputs.scale
        acc_queries += load_sums(d_queries, at_row, inside_rows, SPEC.head_dim, SPEC.block_head_dim)
        store_sums(d_queries, at_row, inside_rows, acc_queries, SPEC.head_dim, SPEC.block_head_dim)
    if NEEDS_D_VALUES:
        acc_values += load_sums(d_values, at_row, inside_rows, SPEC.value_dim, SPEC.block_value_dim)
        store_sums(d_values, at_row, inside_rows, acc_values, SPEC.value_dim, SPEC.block_value_dim)


@triton.constexpr_function
def _stages(SPEC):
    """The pipeline's stages, where a turn has little to do and far to go for what it needs.

    As many as 32768 numbers hold, 4 at most.
    """
    return max(1, min(4, 32768 // (SPEC.block_n * (SPEC.block_m + SPEC.block_head_dim))))


@triton.jit
def _part(begin, end, split, splits):
    """Where one of `splits` parts of the tiles `begin..end - 1` begins and ends: side by side."""
    tiles = tl.cdiv(tl.maximum(end - begin, 0), splits)
    first = begin + split * tiles
    return first, tl.minimum(first + tiles, end)


@triton.jit
def _head_of(head, batch, first_kv_head, args):
    """`b`, `h` and `g` of a query head of the chunk."""
    heads_per_kv_head = args.inputs.heads_per_kv_head
    kv_head = first_kv_head + head // heads_per_kv_head
    g = kv_head // batch
    return kv_head % batch, g * heads_per_kv_head + head % heads_per_kv_head, g


@triton.jit
def _load_by_offset(x, stored, head, row, key0, inside, SPEC: tl.constexpr):
    """A tile `(n offsets, m queries)`; zeros for keys within a margin of those that there are.

    With the offsets first, neighbouring threads read neighbouring numbers, as they have to where a
    row begins at any address: queries first, the compiler would give it the layout of other tiles.

    Args:
        x: of `stored`.
        stored: StoredScores.
        head: query head of the chunk.
        row: the first query, of the chunk's.
        key0: of the first query at the first offset.
        inside: `(n,)`, the offsets to read.
        SPEC: of the kernel.
    """
    a = tl.arange(0, SPEC.block_m)[None, :]
    r = tl.arange(0, SPEC.block_n)[:, None]
    first = tl.cast(head, tl.int64) * stored.stride_h + row * stored.stride_i + key0
    return tl.load(x + first + (a * (stored.stride_i + 1) + r), mask=inside[:, None], other=0.0)
