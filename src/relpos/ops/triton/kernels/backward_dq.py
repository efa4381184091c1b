"""Backward, one tile of queries at a time: gradients of `q`, `q_rel` and of a grid's logits.

    dS_ij = P_ij (dO_i . (v_j + V[j-i]) - delta_i)        delta_i = dO_i . o_i - d_lse_i
    dq_i  = scale * (sum_j dS_ij k_j + sum_j dS_ij K[j-i])

The second sum is `q_rel`'s, where there is one. The kernel walks along the keys as `forward.py`
does. The sums of what other kernels need go out as well: `delta`, and how much of `dS` and of
the weights belongs to the tables' two end rows; and the sums of `dS` by offset in a narrow band,
which are the bias's gradient.

    q, acc (m, d)    q_rel, acc_rel (m, rel_dim)    o, d_out (m, dv)    k (n, d)    v (n, dv)
    scores, weights, d_scores (m, n)    delta, row_max, inverse_sum (m,)    acc_axis (m, s)
"""

import triton
import triton.language as tl

from ..kernel_args import KernelSizes
from .grid_products import (
    load_by_key_coordinate,
    load_key_logits,
    load_key_marks,
    load_query_logits,
    load_query_marks,
    logits_of_axes,
    sum_by_marks,
    times_marks,
)
from .grid_rows import bits_of_row, dots_of_places, store_of_places, store_of_row, tile_keys
from .grid_terms import sum_by_coordinate
from .regions import (
    BAND,
    LEFT,
    RIGHT,
    adds_to_deltas,
    adds_to_rows,
    end_dot,
    end_row_sums,
    has_row_bits,
    key_regions,
    on_grid,
    query_tile,
    region_bounds,
    selects_end_row,
    stages_of,
    tile_step,
    times_end_row,
)
from .scores import bits_of_score, delta_of_outputs, tile_d_scores, tile_exponentials, tile_scores
from .shear import (
    first_row,
    store_sums_by_offset,
    tile_dot_queries,
    tile_dot_rows,
    tile_times_rows,
)
from .structs import KernelArgs, Pairs, RowStats
from .tables import KEYS, VALUES
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


@triton.jit(do_not_specialize=(*KernelSizes._fields, "band_tiles"))
def dq_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    out, rounded_off, softmax, d_out, d_lse, axis_weights, d_axis_weights,
    d_q, d_q_rel, d_key_axis_logits, delta, end_rows, end_stats, sums, sums_rel, band_sums,
    band_tiles,
    SPEC: tl.constexpr, WALKS_ENDS: tl.constexpr, WALKS_BAND: tl.constexpr,
    HAS_D_LSE: tl.constexpr, NEEDS_D_Q: tl.constexpr, NEEDS_D_Q_REL: tl.constexpr,
    NEEDS_D_LOGITS: tl.constexpr, NEEDS_END_D_SCORES: tl.constexpr,
    NEEDS_END_WEIGHTS: tl.constexpr, STORES_END_STATS: tl.constexpr,
    NEEDS_BAND_SUMS: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head, over all keys, or over those in one kind of region.

    Of two launches the first one has `WALKS_ENDS`, and the second one, with `WALKS_BAND`, goes on
    from what that has summed: so loops that differ in what they need are not compiled as one. Their
    tiles must be of one size, by which the regions are cut.

    Reads, besides `inputs`, and in the second launch what the first one has written to `delta`,
    `end_rows`, `sums` and `sums_rel`:
        out: TokenTensor `(b, h, i, dv)`.
        rounded_off: TokenTensor `(b, h, i, dv)`, of the forward kernel, or None.
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
        end_rows: `(4, b, h, i)` float32: the sums of `dS` over the keys that select the tables'
            first row, and over those that select their last one, where `NEEDS_END_D_SCORES`; then
            those of the weights that dropout leaves, where `NEEDS_END_WEIGHTS`.
        end_stats: `(4, b, h, i)` float32 where `STORES_END_STATS`: `row_max` for LEFT and for RIGHT
            where a table of keys adds to rows there, then `delta` where one of values does.
        sums: TokenTensor `(b, h, i, d)` float32, where `NEEDS_D_Q`: `acc` after the first launch of
            two.
        sums_rel: TokenTensor `(b, h, i, rel_dim)` float32: `acc_rel`, likewise.
        band_sums: `(programs, band_tiles, m / n + 1, n)` float32 where `NEEDS_BAND_SUMS`: for each
            tile of the band its sums of `dS` by offset, in blocks (`shear.py`).
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    # Whether `dS` is multiplied with the table of keys.
    TIMES_KEYS: tl.constexpr = SPEC.has_keys and (NEEDS_D_Q_REL if SPEC.has_q_rel else NEEDS_D_Q)
    # LEFT, BAND and RIGHT; LEFT and RIGHT; or BAND.
    FIRST_REGION: tl.constexpr = LEFT if WALKS_ENDS else BAND
    END_REGION: tl.constexpr = RIGHT + 1 if WALKS_ENDS else BAND + 1
    STEP: tl.constexpr = 1 if WALKS_BAND else RIGHT - LEFT
    tiles_per_head = tl.cdiv(args.seqlen_q, SPEC.block_m)
    num_score_rows = tl.cast(args.num_tiles // tiles_per_head, tl.int64) * args.seqlen_q
    b, h, i0 = query_tile(tl.program_id(0), tiles_per_head, args, SPEC)
    g = h // args.inputs.heads_per_kv_head
    i = i0 + tl.arange(0, SPEC.block_m)
    c = tl.arange(0, SPEC.block_n)
    q, q_rel = load_queries(args, b, h, i, SPEC)
    d_o = load_outputs(d_out, args, b, h, i, SPEC)
    row_max = load_by_query(softmax, args, b, h, i, float("inf"))
    inverse_sum = load_by_query(softmax + num_score_rows, args, b, h, i, 0.0)
    acc = zeros(SPEC.block_m, SPEC.block_head_dim)
    if TIMES_KEYS and SPEC.has_q_rel:
        acc_rel = zeros(SPEC.block_m, SPEC.block_rel_dim)
    if WALKS_ENDS:
        row_delta = delta_of_outputs(out, rounded_off, d_o, d_lse, args, b, h, i, HAS_D_LSE, SPEC)
        if SPEC.has_axis_weights:
            row_delta += _axis_delta(axis_weights, d_axis_weights, args, b, h, i, SPEC)
        # What flows into a row without keys may be NaN.
        row_delta = tl.where(inverse_sum > 0, row_delta, 0.0)
        store_by_query(delta, args, b, h, i, row_delta)
    else:
        row_delta = load_by_query(delta, args, b, h, i, 0.0)
        if NEEDS_D_Q:
            acc += load_tokens(
                sums, b, h, i, args.seqlen_q, SPEC.head_dim, SPEC.block_head_dim, SPEC
            )  # fmt: skip
        if TIMES_KEYS and SPEC.has_q_rel:
            acc_rel += load_tokens(
                sums_rel, b, h, i, args.seqlen_q, SPEC.rel_dim, SPEC.block_rel_dim, SPEC
            )  # fmt: skip
    if NEEDS_END_D_SCORES:
        first_d_scores = zeros_1d(SPEC.block_m)
        last_d_scores = zeros_1d(SPEC.block_m)
        if not WALKS_ENDS:
            first_d_scores += load_by_query(end_rows, args, b, h, i, 0.0)
            last_d_scores += load_by_query(end_rows + num_score_rows, args, b, h, i, 0.0)
    if NEEDS_END_WEIGHTS:
        first_weights = zeros_1d(SPEC.block_m)
        last_weights = zeros_1d(SPEC.block_m)
        if not WALKS_ENDS:
            first_weights += load_by_query(end_rows + 2 * num_score_rows, args, b, h, i, 0.0)
            last_weights += load_by_query(end_rows + 3 * num_score_rows, args, b, h, i, 0.0)
    if NEEDS_D_LOGITS and not SPEC.grid_by_rows:
        acc_axis = zeros(SPEC.block_m, SPEC.block_key_coordinates)
    key_logits = load_key_logits(args, b, h, i, SPEC)
    query_marks = load_query_marks(args, i, SPEC)
    if SPEC.has_axis_weights and SPEC.axes_by_product:
        d_weights = load_by_key_coordinate(d_axis_weights, args, b, h, i, False, SPEC)

    regions = key_regions(args, b, i0, SPEC)
    for REGION in tl.static_range(FIRST_REGION, END_REGION, STEP):
        lower, upper = region_bounds(regions, REGION, LEFT)
        if SPEC.has_keys and REGION != BAND:
            end_dots = end_dot(args, KEYS, h, q_rel, REGION, SPEC)
        if SPEC.has_values and REGION != BAND:
            end_d_out_dots = end_dot(args, VALUES, h, d_o, REGION, SPEC)
        if adds_to_rows(REGION, SPEC):
            row_bits = end_dots * bits_of_score(args, SPEC)
            # Else of rows that see no key of the region; others are not finite by their `row_max`.
            row_bits = tl.where(row_bits < float("inf"), row_bits, 0.0)
        region_delta = row_delta
        if adds_to_deltas(REGION, SPEC):
            region_delta -= end_d_out_dots
        if STORES_END_STATS and REGION != BAND:
            at = end_stats + (0 if REGION == LEFT else num_score_rows)
            if adds_to_rows(REGION, SPEC):
                store_by_query(at, args, b, h, i, row_max - row_bits)
            if adds_to_deltas(REGION, SPEC):
                store_by_query(at + 2 * num_score_rows, args, b, h, i, region_delta)
        if TIMES_KEYS and REGION != BAND:
            end_d_scores = zeros_1d(SPEC.block_m)
        if on_grid(REGION, SPEC):
            grid_dots = dots_of_places(args, b, h, i, lower, SPEC)
            if NEEDS_D_LOGITS:
                acc_places = zeros(SPEC.block_m, SPEC.block_n)
        for j0 in tl.range(
            lower, upper, tile_step(REGION, SPEC), num_stages=stages_of(REGION, SPEC)
        ):
            j = tile_keys(args, j0, SPEC)
            pairs = Pairs(b, h, i[:, None], j[None, :], j0, c[None, :])
            k = load_keys(args, b, g, j, SPEC)
            v = load_values(args, b, g, j, SPEC)
            # Before the scores: so the compiler spills fewer registers.
            d_out_dots = tl.dot(d_o, tl.trans(v), input_precision=SPEC.precision)
            dots = tl.dot(q, tl.trans(k), input_precision=SPEC.precision)
            if SPEC.has_keys and REGION == BAND:
                dots += tile_dot_rows(args, KEYS, h, q_rel, i0, j0, SPEC)
            elif SPEC.has_keys and not adds_to_rows(REGION, SPEC):
                dots += end_dots[:, None]
            if SPEC.has_queries:
                again = load_keys(args, b, g, j, SPEC, AGAIN=True)
                dots += tile_dot_queries(args, h, again, i0, j0, REGION, SPEC)
            if on_grid(REGION, SPEC):
                dots += grid_dots
            key_marks = load_key_marks(args, j, SPEC)
            query_logits = load_query_logits(args, b, h, j, SPEC)
            of_axes = logits_of_axes(key_logits, key_marks, query_logits, query_marks, SPEC)
            scores, slope = tile_scores(args, pairs, dots, of_axes, REGION, SPEC.ragged_keys, SPEC)
            if on_grid(REGION, SPEC):
                row_bits = bits_of_row(args, b, h, i, j0, SPEC)
            stats = RowStats(row_max, inverse_sum, region_delta)
            if has_row_bits(REGION, SPEC):
                stats = RowStats(row_max - row_bits, inverse_sum, region_delta)
            exps = tile_exponentials(args, scores, stats, SPEC)
            if SPEC.has_values and REGION == BAND:
                d_out_dots += tile_dot_rows(args, VALUES, h, d_o, i0, j0, SPEC)
            elif SPEC.has_values and not adds_to_deltas(REGION, SPEC):
                d_out_dots += end_d_out_dots[:, None]
            if SPEC.has_axis_weights and SPEC.axes_by_product:
                d_out_dots += times_marks(d_weights, key_marks, False, SPEC)
            weights_after_dropout, d_scores = tile_d_scores(
                args, pairs, stats, exps, slope, d_out_dots, d_axis_weights,
                SPEC.axes_by_product, SPEC,
            )  # fmt: skip
            acc += tl.dot(d_scores.to(k.dtype), k, input_precision=SPEC.precision)
            if TIMES_KEYS and REGION != BAND:
                end_d_scores += tl.sum(d_scores, 1)
            elif TIMES_KEYS and SPEC.has_q_rel:
                acc_rel = tile_times_rows(acc_rel, d_scores, args, KEYS, h, i0, j0, SPEC)
            elif TIMES_KEYS:
                acc = tile_times_rows(acc, d_scores, args, KEYS, h, i0, j0, SPEC)
            if NEEDS_D_LOGITS and SPEC.grid_by_rows:
                if REGION == BAND:
                    acc_places += d_scores
                    row_sum = tl.sum(d_scores, 1)
                    store_of_row(d_key_axis_logits, args, b, h, i, j0, row_sum, SPEC)
            elif NEEDS_D_LOGITS and SPEC.axes_by_product:
                acc_axis += sum_by_marks(d_scores, key_marks, SPEC)
            elif NEEDS_D_LOGITS:
                acc_axis += sum_by_coordinate(
                    d_scores, args.inputs.key_coordinates, j, args.seqlen_k,
                    SPEC.num_axes, SPEC.block_key_coordinates,
                )  # fmt: skip
            if NEEDS_BAND_SUMS and REGION == BAND:
                # Counted from the first tile of which any pair could be in the band.
                number = first_row(args, i0, j0, SPEC) + SPEC.block_m + SPEC.block_n
                number = tl.program_id(0) * band_tiles + number // SPEC.block_n
                store_sums_by_offset(band_sums, number, d_scores)
            if (REGION != BAND) or selects_end_row(args, i0, j0, SPEC):
                if NEEDS_END_D_SCORES:
                    first, last = end_row_sums(args, pairs, d_scores, 1, REGION)
                    first_d_scores += first
                    last_d_scores += last
                if NEEDS_END_WEIGHTS:
                    first, last = end_row_sums(args, pairs, weights_after_dropout, 1, REGION)
                    first_weights += first
                    last_weights += last
        if TIMES_KEYS and REGION != BAND:
            times_row = times_end_row(end_d_scores, args, KEYS, h, REGION, SPEC)
            if SPEC.has_q_rel:
                acc_rel += times_row
            else:
                acc += times_row

    if not WALKS_BAND:
        if NEEDS_D_Q:
            store_tokens(
                sums, b, h, i, args.seqlen_q, acc, SPEC.head_dim, SPEC.block_head_dim, SPEC
            )  # fmt: skip
        if TIMES_KEYS and SPEC.has_q_rel:
            store_tokens(
                sums_rel, b, h, i, args.seqlen_q, acc_rel, SPEC.rel_dim, SPEC.block_rel_dim, SPEC
            )  # fmt: skip
    if NEEDS_D_Q and WALKS_BAND:
        store_tokens(
            d_q, b, h, i, args.seqlen_q, acc * args.inputs.scale,
            SPEC.head_dim, SPEC.block_head_dim, SPEC,
        )  # fmt: skip
    if TIMES_KEYS and SPEC.has_q_rel and WALKS_BAND:
        store_tokens(
            d_q_rel, b, h, i, args.seqlen_q, acc_rel * args.inputs.scale,
            SPEC.rel_dim, SPEC.block_rel_dim, SPEC,
        )  # fmt: skip
    if NEEDS_END_D_SCORES:
        store_by_query(end_rows, args, b, h, i, first_d_scores)
        store_by_query(end_rows + num_score_rows, args, b, h, i, last_d_scores)
    if NEEDS_END_WEIGHTS:
        store_by_query(end_rows + 2 * num_score_rows, args, b, h, i, first_weights)
        store_by_query(end_rows + 3 * num_score_rows, args, b, h, i, last_weights)
    if NEEDS_D_LOGITS and SPEC.grid_by_rows:
        store_of_places(d_key_axis_logits, args, b, h, i, acc_places, SPEC)
    elif NEEDS_D_LOGITS:
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
