"""Forward: `o_i = sum_j softmax(s_i)_j (v_j + V[j-i])`, one tile of queries at a time.

Online softmax (Milakov & Gimelshein 2018; Dao et al. 2022). In LEFT and RIGHT a table's product
is one number for each query, found once; in the band it is sheared for each tile.

    q (m, d)    k (n, d)    v (n, dv)    scores, weights (m, n)    acc (m, dv)
    row_max, row_sum, rescale (m,)    acc_axis_weights (m, s)
"""

import triton
import triton.language as tl

from ..kernel_args import KernelSizes
from .grid_products import (
    load_key_logits,
    load_key_marks,
    load_query_logits,
    load_query_marks,
    logits_of_axes,
    sum_by_marks,
)
from .grid_rows import bits_of_row, dots_of_places, tile_keys
from .grid_terms import sum_by_coordinate
from .masks import survives_dropout
from .regions import (
    BAND,
    LEFT,
    adds_to_rows,
    end_dot,
    has_row_bits,
    key_regions,
    on_grid,
    query_tile,
    region_bounds,
    stages_of,
    tile_step,
    times_end_row,
    within_split,
)
from .scores import bits_of_score, exponentials, largest, log_sum_exp, rescaling, tile_scores
from .shear import tile_dot_queries, tile_dot_rows, tile_times_rows
from .structs import KernelArgs, Pairs
from .tables import KEYS, VALUES
from .tiles import (
    load_keys,
    load_queries,
    load_values,
    store_by_query,
    store_tokens,
    what_rounding_takes,
    zeros,
    zeros_1d,
)


@triton.jit(do_not_specialize=(*KernelSizes._fields, "splits"))
def forward_kernel(
    inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset, max_offset,
    num_tiles,
    out, lse, softmax, axis_weights, rounded_off, parts, part_sums, splits,
    SPEC: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; with `SPLIT` over one of `splits` parts of the keys.

    Writes:
        out: TokenTensor `(b, h, i, dv)`.
        lse: `(b, h, i)` float32, in nats.
        softmax: `(2, b, h, i)` float32: `row_max` and `inverse_sum` of `structs.RowStats`, from
            which backward has the weights again: from the log-sum-exp of large scores it would not.
        axis_weights: TokenTensor `(b, h, i, s)` float32: the weights summed by coordinate of the
            key; None without a grid's values.
        rounded_off: TokenTensor `(b, h, i, dv)`: what rounding took off `out`, in its dtype, for
            backward; or None.
        parts: with `SPLIT`, in place of the others, TokenTensor `(splits * b, h, i, dv)` float32:
            the outputs, not yet divided by `row_sum`.
        part_sums: `(2, splits * b, h, i)` float32: `row_max` and `row_sum` of each part.
    """
    args = KernelArgs(
        inputs, seqlen_q, seqlen_k, query_start, table_first, table_rows, min_offset,
        max_offset, num_tiles,
    )  # fmt: skip
    tiles_per_head = tl.cdiv(args.seqlen_q, SPEC.block_m)
    tile = tl.program_id(0) // splits if SPLIT else tl.program_id(0)
    b, h, i0 = query_tile(tile, tiles_per_head, args, SPEC)
    g = h // args.inputs.heads_per_kv_head
    i = i0 + tl.arange(0, SPEC.block_m)
    c = tl.arange(0, SPEC.block_n)
    q, q_rel = load_queries(args, b, h, i, SPEC)
    acc = zeros(SPEC.block_m, SPEC.block_value_dim)
    row_max = zeros_1d(SPEC.block_m) - float("inf")
    row_sum = zeros_1d(SPEC.block_m)
    if SPEC.has_axis_weights:
        acc_axis_weights = zeros(SPEC.block_m, SPEC.block_key_coordinates)

    key_logits = load_key_logits(args, b, h, i, SPEC)
    query_marks = load_query_marks(args, i, SPEC)

    regions = key_regions(args, b, i0, SPEC)
    for REGION in tl.static_range(3):
        lower, upper = region_bounds(regions, REGION, LEFT)
        if SPLIT:
            lower, upper = within_split(lower, upper, regions, splits, SPEC)
        if SPEC.has_keys and REGION != BAND:
            end_dots = end_dot(args, KEYS, h, q_rel, REGION, SPEC)
        if adds_to_rows(REGION, SPEC):
            row_bits = end_dots * bits_of_score(args, SPEC)
        if SPEC.has_values and REGION != BAND:
            end_weights = zeros_1d(SPEC.block_m)
        if on_grid(REGION, SPEC):
            grid_dots = dots_of_places(args, b, h, i, lower, SPEC)
        for j0 in tl.range(
            lower, upper, tile_step(REGION, SPEC), num_stages=stages_of(REGION, SPEC)
        ):
            j = tile_keys(args, j0, SPEC)
            pairs = Pairs(b, h, i[:, None], j[None, :], j0, c[None, :])
            k = load_keys(args, b, g, j, SPEC)
            v = load_values(args, b, g, j, SPEC)
            dots = tl.dot(q, tl.trans(k), input_precision=SPEC.precision)
            if SPEC.has_keys and REGION == BAND:
                dots += tile_dot_rows(args, KEYS, h, q_rel, i0, j0, SPEC)
            elif SPEC.has_keys and not adds_to_rows(REGION, SPEC):
                dots += end_dots[:, None]
            if SPEC.has_queries:
                dots += tile_dot_queries(args, h, k, i0, j0, REGION, SPEC)
            if on_grid(REGION, SPEC):
                dots += grid_dots
            key_marks = load_key_marks(args, j, SPEC)
            query_logits = load_query_logits(args, b, h, j, SPEC)
            of_axes = logits_of_axes(key_logits, key_marks, query_logits, query_marks, SPEC)
            scores, _ = tile_scores(args, pairs, dots, of_axes, REGION, SPEC.ragged_keys, SPEC)

            tile_max = largest(args, scores, SPEC)
            if on_grid(REGION, SPEC):
                row_bits = bits_of_row(args, b, h, i, j0, SPEC)
            if has_row_bits(REGION, SPEC):
                # Of a row that sees no key of the tile it may be anything.
                tile_bits = tl.where(tile_max == float("-inf"), 0.0, row_bits)
                tile_max += tile_bits
            new_max = tl.maximum(row_max, tile_max)
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # while there is no key
            rescale = rescaling(row_max, shift, SPEC)
            row_max = new_max
            if has_row_bits(REGION, SPEC):
                shift -= tile_bits
            weights = exponentials(args, scores, shift, SPEC)
            row_sum = row_sum * rescale + tl.sum(weights, 1)
            acc = acc * rescale[:, None]
            if SPEC.has_dropout:
                weights = tl.where(survives_dropout(args, pairs, SPEC), weights, 0.0)
            acc += tl.dot(weights.to(v.dtype), v, input_precision=SPEC.precision)
            if SPEC.has_axis_weights:
                acc_axis_weights *= rescale[:, None]
                if SPEC.axes_by_product:
                    acc_axis_weights += sum_by_marks(weights, key_marks, SPEC)
                else:
                    acc_axis_weights += sum_by_coordinate(
                        weights, args.inputs.key_coordinates, j, args.seqlen_k,
                        SPEC.num_axes, SPEC.block_key_coordinates,
                    )  # fmt: skip
            if SPEC.has_values:
                if REGION == BAND:
                    acc = tile_times_rows(acc, weights, args, VALUES, h, i0, j0, SPEC)
                else:
                    end_weights = end_weights * rescale + tl.sum(weights, 1)
        if SPEC.has_values and REGION != BAND:
            acc += times_end_row(end_weights, args, VALUES, h, REGION, SPEC)

    num_score_rows = tl.cast(args.num_tiles // tiles_per_head, tl.int64) * args.seqlen_q
    if SPLIT:
        batch = args.num_tiles // tiles_per_head // args.inputs.heads
        part = tl.program_id(0) % splits * batch + b
        store_tokens(
            parts, part, h, i, args.seqlen_q, acc, SPEC.value_dim, SPEC.block_value_dim, SPEC
        )
        store_by_query(part_sums, args, part, h, i, row_max)
        store_by_query(part_sums + splits * num_score_rows, args, part, h, i, row_sum)
    else:
        row_max, inverse_sum, row_lse = finished_rows(row_max, row_sum, SPEC)
        normalizer = inverse_sum
        if SPEC.has_dropout:
            normalizer = inverse_sum * args.inputs.keep_scale
        o = acc * normalizer[:, None]
        store_tokens(out, b, h, i, args.seqlen_q, o, SPEC.value_dim, SPEC.block_value_dim, SPEC)
        if rounded_off is not None:
            lost = what_rounding_takes(o, out.ptr.dtype.element_ty)
            store_tokens(
                rounded_off, b, h, i, args.seqlen_q, lost, SPEC.value_dim, SPEC.block_value_dim,
                SPEC,
            )  # fmt: skip
        if SPEC.has_axis_weights:
            store_tokens(
                axis_weights, b, h, i, args.seqlen_q, acc_axis_weights * normalizer[:, None],
                SPEC.num_key_coordinates, SPEC.block_key_coordinates, SPEC,
            )  # fmt: skip
        store_by_query(lse, args, b, h, i, row_lse)
        store_by_query(softmax, args, b, h, i, row_max)
        store_by_query(softmax + num_score_rows, args, b, h, i, inverse_sum)


@triton.jit(do_not_specialize=("rows", "heads", "queries", "splits"))
def merge_kernel(
    parts, part_sums, out, rounded_off, lse, softmax, rows, heads, queries, splits, keep_scale,
    M: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """The results of `M` rows, queries of all heads, from those of the parts of their keys.

    Reads `parts (splits, rows, dv)` and `part_sums (2, splits, rows)`, and writes `out (b, h, i,
    dv)`, `rounded_off`, `lse (rows,)` and `softmax (2, rows)`, all as the forward kernel has them,
    one part after another.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    row = tl.cast(row, tl.int64)
    known = row < rows
    row_max = zeros_1d(M) - float("inf")
    for split in range(splits):
        part = tl.load(part_sums + tl.cast(split, tl.int64) * rows + row, mask=known, other=0.0)
        row_max = tl.maximum(row_max, part)
    shift = tl.where(row_max == float("-inf"), 0.0, row_max)
    columns = tl.arange(0, SPEC.block_value_dim)
    inside = known[:, None] & (columns < SPEC.value_dim)[None, :]
    row_sum = zeros_1d(M)
    acc = zeros(M, SPEC.block_value_dim)
    for split in range(splits):
        at = tl.cast(split, tl.int64) * rows + row
        factor = rescaling(tl.load(part_sums + at, mask=known, other=0.0), shift, SPEC)
        all_sums = part_sums + tl.cast(splits, tl.int64) * rows
        row_sum += tl.load(all_sums + at, mask=known, other=0.0) * factor
        places = at[:, None] * SPEC.value_dim + columns[None, :]
        acc += tl.load(parts + places, mask=inside, other=0.0) * factor[:, None]
    row_max, inverse_sum, row_lse = finished_rows(row_max, row_sum, SPEC)
    normalizer = inverse_sum * keep_scale if SPEC.has_dropout else inverse_sum
    head = row // queries
    base = head // heads * out.stride_b + head % heads * out.stride_h
    places = (base + row % queries * out.stride_n)[:, None] + columns[None, :]
    o, dtype = acc * normalizer[:, None], out.ptr.dtype.element_ty
    tl.store(out.ptr + places, o.to(dtype), mask=inside)
    if rounded_off is not None:  # it lies as `out` does
        lost = what_rounding_takes(o, dtype)
        tl.store(rounded_off + places, lost.to(dtype), mask=inside)
    tl.store(lse + row, row_lse, mask=known)
    tl.store(softmax + row, row_max, mask=known)
    tl.store(softmax + rows + row, inverse_sum, mask=known)


@triton.jit
def finished_rows(row_max, row_sum, SPEC: tl.constexpr):
    """`row_max` and `inverse_sum` of `structs.RowStats`, and the log-sum-exp: `(m,)` each."""
    has_keys = row_sum > 0
    without_keys = tl.where(row_sum == 0, float("-inf"), row_sum)  # NaN stays, as in the output
    row_sum = tl.where(has_keys, row_sum, 1.0)
    inverse_sum = tl.where(has_keys, 1.0 / row_sum, 0.0)
    row_lse = tl.where(has_keys, log_sum_exp(row_max, row_sum, SPEC), without_keys)
    return tl.where(has_keys, row_max, float("inf")), inverse_sum, row_lse
