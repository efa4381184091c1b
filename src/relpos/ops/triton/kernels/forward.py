"""Forward: `o_i = sum_j softmax(s_i)_j (v_j + V[j-i])`, one tile of queries at a time.

Online softmax (Milakov & Gimelshein 2018; Dao et al. 2022). In the band, the products with the
table of keys come from an offset buffer, and the scores go to another, to come back by offset for
the table of values (`band.py`).

    q (m, d)    k (n, d)    v (n, dv)    scores, weights (m, n)    acc (m, dv)
    row_max, row_sum, rescale, first_row_sum, last_row_sum (m,)    acc_axis_weights (m, s)
"""

import triton
import triton.language as tl

from ..kernel_args import KernelSizes
from .band import begin_dots, begin_kept, extend_dots, keep, row_of_column_0, take, walk_scores
from .grid_terms import coordinate_marks
from .masks import survives_dropout
from .offset_buffer import offset_buffer
from .regions import BAND, LEFT, end_dot, end_row_sums, key_regions, query_tile, region_bounds
from .structs import KernelArgs, Pairs
from .tables import KEYS, VALUES, times_end_rows, times_rows
from .tiles import (
    load_keys,
    load_queries,
    load_values,
    store_by_query,
    store_tokens,
    zeros,
    zeros_1d,
)


@triton.jit(do_not_specialize=KernelSizes._fields)
def forward_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    out, lse, softmax, axis_weights, SPEC: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head after another.

    Writes:
        out: TokenTensor `(b, h, i, dv)`.
        lse: `(b, h, i)` float32, in nats.
        softmax: `(2, b, h, i)` float32: the largest score of each row and 1 over its sum, from
            which backward has the weights again: from the log-sum-exp of large scores it would not.
        axis_weights: TokenTensor `(b, h, i, s)` float32: the weights summed by coordinate of the
            key; None without a grid's values.
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    keys_buffer = offset_buffer(args, 0, SPEC)
    scores_buffer = offset_buffer(args, SPEC.has_keys, SPEC)
    queries_buffer = offset_buffer(args, SPEC.has_keys + SPEC.has_values, SPEC)
    tiles_per_head = tl.cdiv(args.seqlen_q, SPEC.block_m)
    for tile in range(tl.program_id(0), args.num_tiles, tl.num_programs(0)):
        b, h, i0 = query_tile(tile, tiles_per_head, args, SPEC)
        g = h // args.inputs.heads_per_kv_head
        i = i0 + tl.arange(0, SPEC.block_m)
        q, q_rel = load_queries(args, b, h, i, SPEC)
        acc = zeros(SPEC.block_m, SPEC.block_value_dim)
        row_max = zeros_1d(SPEC.block_m) - float("inf")
        row_sum = zeros_1d(SPEC.block_m)
        if SPEC.has_axis_weights:
            acc_axis_weights = zeros(SPEC.block_m, SPEC.block_key_coordinates)

        regions = key_regions(args, b, i0, SPEC)
        row0 = row_of_column_0(args, i0, regions, SPEC)
        if (SPEC.has_keys or SPEC.has_values) and regions.band_begin < regions.band_end:
            tl.debug_barrier()  # the tile before may still be read
            if SPEC.has_keys:
                begin_dots(keys_buffer, args, KEYS, h, q_rel, row0, SPEC)
            if SPEC.has_values:
                begin_kept(scores_buffer, args, float("-inf"), SPEC)
            tl.debug_barrier()

        if SPEC.has_values:  # weights of the keys that select the table's first row, and its last
            first_row_sum = zeros_1d(SPEC.block_m)
            last_row_sum = zeros_1d(SPEC.block_m)
        for REGION in tl.static_range(3):
            lower, upper = region_bounds(regions, REGION, LEFT)
            p_dot_end_row = None
            if SPEC.has_keys and REGION != BAND:
                p_dot_end_row = end_dot(args, KEYS, h, q_rel, REGION, SPEC)
            for j0 in range(lower, upper, SPEC.block_n):
                j = j0 + tl.arange(0, SPEC.block_n)
                pairs = Pairs(b, h, i[:, None], j[None, :])
                k = load_keys(args, b, g, j, SPEC)
                v = load_values(args, b, g, j, SPEC)
                u = j0 - regions.band_begin
                scores, _ = walk_scores(
                    args, pairs, i0, j0, u, q, k, keys_buffer, p_dot_end_row, queries_buffer,
                    REGION, SPEC,
                )  # fmt: skip

                new_max = tl.maximum(row_max, tl.max(scores, 1))
                shift = _finite_shift(new_max)
                rescale = tl.exp(row_max - shift)
                row_max = new_max
                weights = tl.exp(scores - shift[:, None])
                row_sum = row_sum * rescale + tl.sum(weights, 1)
                acc = acc * rescale[:, None]
                if SPEC.has_dropout:
                    survives = survives_dropout(args, pairs)
                    weights = tl.where(survives, weights, 0.0)
                acc += tl.dot(weights.to(v.dtype), v, input_precision=SPEC.precision)
                if SPEC.has_axis_weights:
                    marks = coordinate_marks(
                        args.inputs.key_coordinates, j, args.seqlen_k, SPEC.num_axes,
                        SPEC.block_key_coordinates,
                    )  # fmt: skip
                    acc_axis_weights = acc_axis_weights * rescale[:, None] + tl.dot(
                        weights.to(v.dtype), marks.to(v.dtype), input_precision=SPEC.precision
                    )
                if SPEC.has_values:
                    first, last = end_row_sums(args, pairs, weights, 1, REGION)
                    first_row_sum = first_row_sum * rescale + first
                    last_row_sum = last_row_sum * rescale + last
                    if REGION == BAND:
                        if SPEC.has_dropout:
                            scores = tl.where(survives, scores, float("-inf"))
                        keep(scores_buffer, args, pairs, u, scores, SPEC)
                if REGION == BAND and not SPEC.buffer_by_row:
                    if SPEC.has_keys:
                        extend_dots(keys_buffer, args, KEYS, h, q_rel, row0, u, SPEC)
                    if SPEC.has_keys or SPEC.has_values:
                        tl.debug_barrier()
                    if SPEC.has_values:
                        acc += _times_values(scores_buffer, args, h, shift, regions, row0, u, SPEC)
            if SPEC.has_values and REGION == BAND and not SPEC.buffer_by_row:
                if regions.band_begin < regions.band_end:
                    shift = _finite_shift(row_max)
                    for part in tl.static_range(SPEC.block_m // SPEC.block_n):
                        u = regions.band_end - regions.band_begin + part * SPEC.block_n
                        acc += _times_values(scores_buffer, args, h, shift, regions, row0, u, SPEC)

        if SPEC.has_values:
            if SPEC.buffer_by_row:
                if regions.band_begin < regions.band_end:
                    tl.debug_barrier()
                    shift = _finite_shift(row_max)
                    for u in range(0, args.table_rows, SPEC.block_n):
                        acc += _times_values(scores_buffer, args, h, shift, regions, row0, u, SPEC)
            first, last = times_end_rows(args, VALUES, h, first_row_sum, last_row_sum, SPEC)
            acc += first
            acc += last

        has_keys = row_sum > 0
        row_sum = tl.where(has_keys, row_sum, 1.0)
        inverse_sum = tl.where(has_keys, 1.0 / row_sum, 0.0)
        normalizer = inverse_sum
        if SPEC.has_dropout:
            normalizer = inverse_sum * args.inputs.keep_scale
        store_tokens(
            out, b, h, i, args.seqlen_q, acc * normalizer[:, None],
            SPEC.value_dim, SPEC.block_value_dim, SPEC,
        )  # fmt: skip
        if SPEC.has_axis_weights:
            store_tokens(
                axis_weights, b, h, i, args.seqlen_q, acc_axis_weights * normalizer[:, None],
                SPEC.num_key_coordinates, SPEC.block_key_coordinates, SPEC,
            )  # fmt: skip
        num_score_rows = tl.cast(args.num_tiles // tiles_per_head, tl.int64) * args.seqlen_q
        row_lse = tl.where(has_keys, row_max + tl.log(row_sum), float("-inf"))
        row_max = tl.where(has_keys, row_max, float("inf"))
        store_by_query(lse, args, b, h, i, row_lse)
        store_by_query(softmax, args, b, h, i, row_max)
        store_by_query(softmax + num_score_rows, args, b, h, i, inverse_sum)


@triton.jit
def _finite_shift(row_max):
    """What is subtracted from scores: their largest, or 0 where there is no key yet."""
    return tl.where(row_max == float("-inf"), 0.0, row_max)


@triton.jit
def _times_values(buffer, args, h, shift, regions, row0, u, SPEC: tl.constexpr):
    """The weights in columns `u..u + n - 1`, times their rows of the values' table: `(m, dv)`."""
    scores = take(buffer, args, regions, row0, u, float("-inf"), SPEC)
    weights = tl.exp(scores - shift[:, None])
    return times_rows(args, VALUES, h, weights, row0 + u + tl.arange(0, SPEC.block_n), SPEC)
