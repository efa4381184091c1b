"""Backward, one tile of keys at a time: gradients of `k`, `v` and of a grid's logits by query.

    dk_j = scale * (sum_i dS_ij q_i + sum_i dS_ij Q[j-i])        dv_j = sum_i P_ij dO_i

The query heads that share a key head are summed in a fixed order by the one program that owns the
tile. Where other kernels go on from `dS` (`backward_stored.py`), it is stored; one launch has then
some key heads and some queries, and adds to the sums of those before it.

    k, acc_k (n, d)    v, acc_v (n, dv)    q (m, d)    q_rel (m, rel_dim)    d_o (m, dv)
    weights, d_scores (m, n)    first, last, end_region_sum (n,)    acc_axis (n, s)
"""

import triton
import triton.language as tl

from ..kernel_args import KernelSizes
from .grid_products import load_key_marks, load_query_logits, load_query_marks, sum_by_marks
from .grid_rows import count_key_tiles, first_key, tile_keys
from .grid_terms import sum_by_coordinate
from .recompute import recompute_d_scores
from .regions import (
    BAND,
    RIGHT,
    end_row_sums,
    end_table_row,
    query_regions,
    region_bounds,
    stages_of,
)
from .shear import tile_times_queries
from .structs import KernelArgs, Pairs
from .tables import QUERIES, load_row
from .tiles import (
    load_keys,
    load_outputs,
    load_queries,
    load_tokens,
    load_values,
    store_tokens,
    stored_at,
    zeros,
    zeros_1d,
)


@triton.jit(do_not_specialize=(*KernelSizes._fields, "first_kv_head", "i_begin", "i_end"))
def dkdv_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    softmax, d_out, delta, end_stats, d_axis_weights, d_k, d_v, d_query_axis_logits, end_rows,
    stored, sums_k, sums_v, first_kv_head, i_begin, i_end,
    SPEC: tl.constexpr, NEEDS_D_LOGITS: tl.constexpr, NEEDS_D_QUERIES: tl.constexpr,
    STORES_D_SCORES: tl.constexpr, STORES_WEIGHTS: tl.constexpr, IN_PARTS: tl.constexpr,
):  # fmt: skip
    """One tile of keys of one key head, and the queries from `i_begin` to `i_end`: whole tiles.

    Key heads are numbered one sequence after another for each; program 0 has `first_kv_head`.

    Reads, besides `inputs`:
        softmax: `(2, b, h, i)`, of the forward kernel.
        d_out: TokenTensor `(b, h, i, dv)`.
        delta: `(b, h, i)`, of the dq kernel or the delta kernel.
        end_stats: `(4, b, h, i)` of the dq kernel, or None.
        d_axis_weights: TokenTensor `(b, h, i, s)` with a grid's values.

    Writes:
        d_k: TokenTensor `(b, g, j, d)`; where `IN_PARTS`, once no queries are left to come.
        d_v: TokenTensor `(b, g, j, dv)`, likewise.
        d_query_axis_logits: TokenTensor `(b, h, j, s)` where `NEEDS_D_LOGITS`.
        end_rows: `(2, b, h, j)` float32 where `NEEDS_D_QUERIES`: the sums of `dS` over the
            queries for which the key selects the first row of the table of queries, and over those
            for which it selects the last one.
        stored: StoredScores where `STORES_D_SCORES`; with weights where `STORES_WEIGHTS`.

    Adds to, where `IN_PARTS`, unless these queries are the first:
        sums_k: TokenTensor `(1, key heads, j, d)` float32, of `acc_k`, while queries are to come.
        sums_v: TokenTensor `(1, key heads, j, dv)` float32, of `acc_v`, likewise.
        end_rows: the same.
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    tiles_per_head = count_key_tiles(args, SPEC)
    heads_per_kv_head = args.inputs.heads_per_kv_head
    kv_heads = args.inputs.heads // heads_per_kv_head
    heads_in_all = tl.cast(args.num_tiles // tiles_per_head * heads_per_kv_head, tl.int64)
    num_score_rows = heads_in_all * args.seqlen_q
    batch = args.num_tiles // tiles_per_head // kv_heads
    tile = tl.program_id(0)
    part = tile // tiles_per_head
    b = (first_kv_head + part) % batch
    g = (first_kv_head + part) // batch
    j0 = first_key(tile % tiles_per_head, args, SPEC)
    regions = query_regions(args, b, j0, SPEC)
    if IN_PARTS:
        first_query = tl.maximum(regions.begin, i_begin)
        if (i_begin > 0) & (first_query >= tl.minimum(regions.end, i_end)):
            return  # what the parts before have left is right
    j = tile_keys(args, j0, SPEC)
    k = load_keys(args, b, g, j, SPEC)
    v = load_values(args, b, g, j, SPEC)
    key_marks = load_key_marks(args, j, SPEC)
    acc_k = zeros(SPEC.block_n, SPEC.block_head_dim)
    acc_v = zeros(SPEC.block_n, SPEC.block_value_dim)
    if IN_PARTS:
        # Of nothing, before the first part.
        count = tl.where(i_begin > 0, args.seqlen_k, 0)
        acc_k += load_tokens(sums_k, 0, part, j, count, SPEC.head_dim, SPEC.block_head_dim, SPEC)
        acc_v += load_tokens(sums_v, 0, part, j, count, SPEC.value_dim, SPEC.block_value_dim, SPEC)
    for h in range(g * heads_per_kv_head, (g + 1) * heads_per_kv_head):
        if NEEDS_D_QUERIES:
            first_d_scores = zeros_1d(SPEC.block_n)
            last_d_scores = zeros_1d(SPEC.block_n)
        query_logits = load_query_logits(args, b, h, j, SPEC)
        if NEEDS_D_LOGITS:
            acc_axis = zeros(SPEC.block_n, SPEC.block_query_coordinates)
        for REGION in tl.static_range(3):
            lower, upper = region_bounds(regions, REGION, RIGHT)
            lower = tl.maximum(lower, i_begin)
            upper = tl.minimum(upper, i_end)
            if SPEC.has_queries and REGION != BAND:
                end_region_sum = zeros_1d(SPEC.block_n)
            for i0 in tl.range(lower, upper, SPEC.block_m, num_stages=stages_of(REGION, SPEC)):
                i = i0 + tl.arange(0, SPEC.block_m)
                q, q_rel = load_queries(args, b, h, i, SPEC)
                d_o = load_outputs(d_out, args, b, h, i, SPEC)
                query_marks = load_query_marks(args, i, SPEC)
                weights, d_scores = recompute_d_scores(
                    args, b, h, i0, j0, q, q_rel, k, v, d_o, d_out, softmax, delta, end_stats,
                    num_score_rows, d_axis_weights, key_marks, query_logits, query_marks,
                    REGION, False, SPEC,
                )  # fmt: skip
                if STORES_D_SCORES:
                    head = part * heads_per_kv_head + h - g * heads_per_kv_head
                    at = stored_at(stored, head, i0 - i_begin, j0, SPEC)
                    tl.store(stored.d_scores + at, d_scores.to(k.dtype))
                    if STORES_WEIGHTS:
                        tl.store(stored.weights + at, weights.to(k.dtype))
                weights_transposed = tl.trans(weights).to(d_o.dtype)
                d_scores_transposed = tl.trans(d_scores)
                acc_v += tl.dot(weights_transposed, d_o, input_precision=SPEC.precision)
                acc_k += tl.dot(d_scores_transposed.to(q.dtype), q, input_precision=SPEC.precision)
                if SPEC.has_queries:
                    if REGION == BAND:
                        acc_k += tile_times_queries(args, h, d_scores, i0, j0, SPEC)
                    else:
                        end_region_sum += tl.sum(d_scores, 0)
                if NEEDS_D_QUERIES:
                    c = tl.arange(0, SPEC.block_n)
                    pairs = Pairs(b, h, i[:, None], j[None, :], j0, c[None, :])
                    first, last = end_row_sums(args, pairs, d_scores, 0, REGION)
                    first_d_scores += first
                    last_d_scores += last
                if NEEDS_D_LOGITS and SPEC.axes_by_product:
                    acc_axis += sum_by_marks(d_scores_transposed, query_marks, SPEC)
                elif NEEDS_D_LOGITS:
                    acc_axis += sum_by_coordinate(
                        d_scores_transposed, args.inputs.query_coordinates, i,
                        args.seqlen_q, SPEC.num_axes, SPEC.block_query_coordinates,
                    )  # fmt: skip
            if SPEC.has_queries and REGION != BAND:
                end_row = load_row(args, QUERIES, h, end_table_row(args, REGION), SPEC)
                acc_k += end_region_sum[:, None] * end_row[None, :]
        if NEEDS_D_QUERIES:
            head = (tl.cast(b, tl.int64) * args.inputs.heads + h) * args.seqlen_k
            first_at = end_rows + head + j
            last_at = first_at + heads_in_all * args.seqlen_k
            if IN_PARTS:
                is_summed = j < tl.where(i_begin > 0, args.seqlen_k, 0)
                first_d_scores += tl.load(first_at, mask=is_summed, other=0.0)
                last_d_scores += tl.load(last_at, mask=is_summed, other=0.0)
            tl.store(first_at, first_d_scores, mask=j < args.seqlen_k)
            tl.store(last_at, last_d_scores, mask=j < args.seqlen_k)
        if NEEDS_D_LOGITS:
            store_tokens(
                d_query_axis_logits, b, h, j, args.seqlen_k, acc_axis,
                SPEC.num_query_coordinates, SPEC.block_query_coordinates, SPEC,
            )  # fmt: skip
    if IN_PARTS:
        count = args.seqlen_k
        if (regions.begin < regions.end) & (i_end < regions.end):  # more is to come
            store_tokens(
                sums_k, 0, part, j, count, acc_k, SPEC.head_dim, SPEC.block_head_dim, SPEC
            )  # fmt: skip
            store_tokens(
                sums_v, 0, part, j, count, acc_v, SPEC.value_dim, SPEC.block_value_dim, SPEC
            )  # fmt: skip
            return
    store_tokens(
        d_k, b, g, j, args.seqlen_k, acc_k * args.inputs.scale,
        SPEC.head_dim, SPEC.block_head_dim, SPEC,
    )  # fmt: skip
    store_tokens(d_v, b, g, j, args.seqlen_k, acc_v, SPEC.value_dim, SPEC.block_value_dim, SPEC)
