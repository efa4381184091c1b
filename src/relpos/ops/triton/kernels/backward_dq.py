"""Backward, one tile of queries at a time: gradients of `q`, `q_rel` and of a grid's logits.

    dS_ij = P_ij (dO_i . (v_j + V[j-i]) - delta_i)        delta_i = dO_i . o_i - d_lse_i
    dq_i  = scale * (sum_j dS_ij k_j + sum_j dS_ij K[j-i])

The second sum is `q_rel`'s, where there is one. The kernel walks as `forward.py` does. The row sums
of what other kernels need go out as well: `delta`, and how much of `dS` and of the weights belongs
to the tables' two end rows.

    q, acc (m, d)    q_rel, acc_rel (m, rel_dim)    o, d_out (m, dv)    k (n, d)    v (n, dv)
    scores, weights, d_scores (m, n)    delta, row_max, inverse_sum (m,)    acc_axis (m, s)
"""

import triton
import triton.language as tl

from ..kernel_args import KernelSizes
from .band import (
    begin_dots,
    begin_kept,
    extend_dots,
    keep,
    read_dots,
    row_of_column_0,
    take,
    walk_scores,
)
from .grid_terms import coordinate_marks
from .offset_buffer import offset_buffer
from .regions import BAND, LEFT, end_dot, end_row_sums, key_regions, query_tile, region_bounds
from .scores import tile_d_scores, tile_weights
from .structs import KernelArgs, Pairs, RowStats
from .tables import KEYS, VALUES, times_end_rows, times_rows
from .tiles import (
    load_by_query,
    load_keys,
    load_outputs,
    load_queries,
    load_tokens,
    load_values,
    store_by_query,
    store_tokens,
    zeros,
    zeros_1d,
)


@triton.jit(do_not_specialize=KernelSizes._fields)
def dq_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    out, softmax, d_out, d_lse, axis_weights, d_axis_weights,
    d_q, d_q_rel, d_key_axis_logits, delta, end_rows,
    SPEC: tl.constexpr, HAS_D_LSE: tl.constexpr, NEEDS_D_Q: tl.constexpr,
    NEEDS_D_Q_REL: tl.constexpr, NEEDS_D_LOGITS: tl.constexpr, NEEDS_D_TABLES: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head after another.

    Reads, besides `inputs`:
        out: TokenTensor `(b, h, i, dv)`.
        softmax: `(2, b, h, i)`, of the forward kernel.
        d_out: TokenTensor `(b, h, i, dv)`.
        d_lse: `(b, h, i)` where `HAS_D_LSE`.
        axis_weights: TokenTensor `(b, h, i, s)` with a grid's values.
        d_axis_weights: TokenTensor `(b, h, i, s)` with a grid's values.

    Writes:
        d_q: TokenTensor `(b, h, i, d)` where `NEEDS_D_Q`.
        d_q_rel: TokenTensor `(b, h, i, rel_dim)` where `NEEDS_D_Q_REL`.
        d_key_axis_logits: TokenTensor `(b, h, i, s)` where `NEEDS_D_LOGITS`.
        delta: `(b, h, i)` float32.
        end_rows: `(4, b, h, i)` float32 where `NEEDS_D_TABLES`: the sums of `dS` over the keys
            that select the tables' first row, and over those that select their last one; then
            those of the weights that dropout leaves.
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    keys_buffer = offset_buffer(args, 0, SPEC)
    values_buffer = offset_buffer(args, SPEC.has_keys, SPEC)
    d_scores_buffer = offset_buffer(args, SPEC.has_keys + SPEC.has_values, SPEC)
    queries_buffer = offset_buffer(args, 2 * SPEC.has_keys + SPEC.has_values, SPEC)
    # Whether `dS` is multiplied with the table of keys.
    TIMES_KEYS: tl.constexpr = SPEC.has_keys and (NEEDS_D_Q_REL if SPEC.has_q_rel else NEEDS_D_Q)
    tiles_per_head = tl.cdiv(args.seqlen_q, SPEC.block_m)
    num_score_rows = tl.cast(args.num_tiles // tiles_per_head, tl.int64) * args.seqlen_q
    for tile in range(tl.program_id(0), args.num_tiles, tl.num_programs(0)):
        b, h, i0 = query_tile(tile, tiles_per_head, args, SPEC)
        g = h // args.inputs.heads_per_kv_head
        i = i0 + tl.arange(0, SPEC.block_m)
        q, q_rel = load_queries(args, b, h, i, SPEC)
        d_o = load_outputs(d_out, args, b, h, i, SPEC)
        o = load_outputs(out, args, b, h, i, SPEC)
        row_delta = tl.sum(d_o.to(tl.float32) * o.to(tl.float32), 1)
        if SPEC.has_axis_weights:
            row_delta += _axis_delta(axis_weights, d_axis_weights, args, b, h, i, SPEC)
        if HAS_D_LSE:
            row_delta -= load_by_query(d_lse, args, b, h, i, 0.0)
        row_max = load_by_query(softmax, args, b, h, i, float("inf"))
        inverse_sum = load_by_query(softmax + num_score_rows, args, b, h, i, 0.0)
        # What flows into a row without keys may be NaN.
        row_delta = tl.where(inverse_sum > 0, row_delta, 0.0)
        store_by_query(delta, args, b, h, i, row_delta)
        stats = RowStats(row_max, inverse_sum, row_delta)
        acc = zeros(SPEC.block_m, SPEC.block_head_dim)
        if TIMES_KEYS:
            acc_rel = zeros(SPEC.block_m, SPEC.block_rel_dim)
        if NEEDS_D_TABLES or TIMES_KEYS:
            first_d_scores = zeros_1d(SPEC.block_m)
            last_d_scores = zeros_1d(SPEC.block_m)
        if NEEDS_D_TABLES:
            first_weights = zeros_1d(SPEC.block_m)
            last_weights = zeros_1d(SPEC.block_m)
        if NEEDS_D_LOGITS:
            acc_axis = zeros(SPEC.block_m, SPEC.block_key_coordinates)

        regions = key_regions(args, b, i0, SPEC)
        row0 = row_of_column_0(args, i0, regions, SPEC)
        if (SPEC.has_keys or SPEC.has_values) and regions.band_begin < regions.band_end:
            tl.debug_barrier()  # the tile before may still be read
            if SPEC.has_keys:
                begin_dots(keys_buffer, args, KEYS, h, q_rel, row0, SPEC)
            if SPEC.has_values:
                begin_dots(values_buffer, args, VALUES, h, d_o, row0, SPEC)
            if TIMES_KEYS:
                begin_kept(d_scores_buffer, args, 0.0, SPEC)
            tl.debug_barrier()

        for REGION in tl.static_range(3):
            lower, upper = region_bounds(regions, REGION, LEFT)
            p_dot_end_row = None
            d_out_dot_end_row = None
            if SPEC.has_keys and REGION != BAND:
                p_dot_end_row = end_dot(args, KEYS, h, q_rel, REGION, SPEC)
            if SPEC.has_values and REGION != BAND:
                d_out_dot_end_row = end_dot(args, VALUES, h, d_o, REGION, SPEC)
            for j0 in range(lower, upper, SPEC.block_n):
                j = j0 + tl.arange(0, SPEC.block_n)
                pairs = Pairs(b, h, i[:, None], j[None, :])
                k = load_keys(args, b, g, j, SPEC)
                v = load_values(args, b, g, j, SPEC)
                u = j0 - regions.band_begin
                # Before the scores: so the compiler spills fewer registers.
                d_out_dots = tl.dot(d_o, tl.trans(v), input_precision=SPEC.precision)
                scores, slope = walk_scores(
                    args, pairs, i0, j0, u, q, k, keys_buffer, p_dot_end_row, queries_buffer,
                    REGION, SPEC,
                )  # fmt: skip
                if SPEC.has_values:
                    d_out_dots += read_dots(
                        values_buffer, args, d_out_dot_end_row, pairs, u, REGION, SPEC
                    )
                weights = tile_weights(scores, stats)
                weights_after_dropout, d_scores = tile_d_scores(
                    args, pairs, stats, weights, slope, d_out_dots, d_axis_weights, SPEC
                )
                acc += tl.dot(d_scores.to(k.dtype), k, input_precision=SPEC.precision)
                if NEEDS_D_LOGITS:
                    marks = coordinate_marks(
                        args.inputs.key_coordinates, j, args.seqlen_k, SPEC.num_axes,
                        SPEC.block_key_coordinates,
                    )  # fmt: skip
                    acc_axis += tl.dot(
                        d_scores.to(k.dtype), marks.to(k.dtype), input_precision=SPEC.precision
                    )
                if NEEDS_D_TABLES or TIMES_KEYS:
                    first, last = end_row_sums(args, pairs, d_scores, 1, REGION)
                    first_d_scores += first
                    last_d_scores += last
                if NEEDS_D_TABLES:
                    first, last = end_row_sums(args, pairs, weights_after_dropout, 1, REGION)
                    first_weights += first
                    last_weights += last
                if TIMES_KEYS and REGION == BAND:
                    keep(d_scores_buffer, args, pairs, u, d_scores, SPEC)
                if REGION == BAND and not SPEC.buffer_by_row:
                    if SPEC.has_keys:
                        extend_dots(keys_buffer, args, KEYS, h, q_rel, row0, u, SPEC)
                    if SPEC.has_values:
                        extend_dots(values_buffer, args, VALUES, h, d_o, row0, u, SPEC)
                    if SPEC.has_keys or SPEC.has_values:
                        tl.debug_barrier()
                    if TIMES_KEYS:
                        acc_rel += _times_keys(d_scores_buffer, args, h, regions, row0, u, SPEC)
            if TIMES_KEYS and REGION == BAND and not SPEC.buffer_by_row:
                if regions.band_begin < regions.band_end:
                    for part in tl.static_range(SPEC.block_m // SPEC.block_n):
                        u = regions.band_end - regions.band_begin + part * SPEC.block_n
                        acc_rel += _times_keys(d_scores_buffer, args, h, regions, row0, u, SPEC)

        if TIMES_KEYS:
            if SPEC.buffer_by_row:
                if regions.band_begin < regions.band_end:
                    tl.debug_barrier()
                    for u in range(0, args.table_rows, SPEC.block_n):
                        acc_rel += _times_keys(d_scores_buffer, args, h, regions, row0, u, SPEC)
            first, last = times_end_rows(args, KEYS, h, first_d_scores, last_d_scores, SPEC)
            acc_rel += first
            acc_rel += last
        if NEEDS_D_Q:
            if TIMES_KEYS and not SPEC.has_q_rel:
                acc += acc_rel
            store_tokens(
                d_q, b, h, i, args.seqlen_q, acc * args.inputs.scale,
                SPEC.head_dim, SPEC.block_head_dim, SPEC,
            )  # fmt: skip
        if TIMES_KEYS and SPEC.has_q_rel:
            store_tokens(
                d_q_rel, b, h, i, args.seqlen_q, acc_rel * args.inputs.scale,
                SPEC.rel_dim, SPEC.block_rel_dim, SPEC,
            )  # fmt: skip
        if NEEDS_D_TABLES:
            store_by_query(end_rows, args, b, h, i, first_d_scores)
            store_by_query(end_rows + num_score_rows, args, b, h, i, last_d_scores)
            store_by_query(end_rows + 2 * num_score_rows, args, b, h, i, first_weights)
            store_by_query(end_rows + 3 * num_score_rows, args, b, h, i, last_weights)
        if NEEDS_D_LOGITS:
            store_tokens(
                d_key_axis_logits, b, h, i, args.seqlen_q, acc_axis,
                SPEC.num_key_coordinates, SPEC.block_key_coordinates, SPEC,
            )  # fmt: skip


@triton.jit
def _axis_delta(axis_weights, d_axis_weights, args, b, h, i, SPEC: tl.constexpr):
    """What a grid's values add to `delta`: `(m,)`."""
    weights = load_tokens(
        axis_weights, b, h, i, args.seqlen_q,
        SPEC.num_key_coordinates, SPEC.block_key_coordinates, SPEC,
    )  # fmt: skip
    d_weights = load_tokens(
        d_axis_weights, b, h, i, args.seqlen_q,
        SPEC.num_key_coordinates, SPEC.block_key_coordinates, SPEC,
    )  # fmt: skip
    return tl.sum(weights * d_weights, 1)


@triton.jit
def _times_keys(buffer, args, h, regions, row0, u, SPEC: tl.constexpr):
    """`dS` in columns `u..u + n - 1`, times their rows of the keys' table: `(m, rel_dim)`."""
    d_scores = take(buffer, args, regions, row0, u, 0.0, SPEC)
    return times_rows(args, KEYS, h, d_scores, row0 + u + tl.arange(0, SPEC.block_n), SPEC)
