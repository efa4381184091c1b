"""`dS` of one tile, for kernels that have nothing of it from the tile before."""

import triton
import triton.language as tl

from .grid_products import load_by_key_coordinate, load_key_logits, logits_of_axes, times_marks
from .grid_rows import bits_of_row, dots_of_places, tile_keys
from .regions import LEFT, RIGHT, adds_to_deltas, adds_to_rows, end_dot
from .scores import load_row_stats, tile_d_scores, tile_exponentials, tile_scores
from .shear import tile_dot_queries, tile_dot_rows
from .structs import Pairs, RowStats
from .tables import KEYS, VALUES
from .tiles import load_by_query, load_outputs, load_queries


@triton.jit
def recompute_d_scores(
    args, b, h, i0, j0, q, q_rel, k, v, d_o, d_out, softmax, delta, end_stats, num_score_rows,
    d_axis_weights, key_marks, query_logits, query_marks,
    REGION: tl.constexpr, OF_MASK: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """The weights that dropout leaves and `dS` of the queries from `i0` and the keys from `j0`.

    `(m, n)` each.

    Args:
        args: of the kernel.
        b: number of the sequence.
        h: number of the query head.
        i0: number of the first query.
        j0: number of the first key.
        q: `(m, d)`.
        q_rel: `(m, rel_dim)`.
        k: `(n, d)`.
        v: `(n, dv)`.
        d_o: `(m, dv)`.
        d_out: TokenTensor `(b, h, i, dv)` that it is from.
        softmax: `(2, b, h, i)`.
        delta: `(b, h, i)`.
        end_stats: `(4, b, h, i)`, as the dq kernel has written them, or None.
        num_score_rows: `b * h * i`, int64.
        d_axis_weights: TokenTensor `(b, h, i, s)`, or None.
        key_marks: `(n, s)` as `load_key_marks` has it.
        query_logits: `(n, s)` as `load_query_logits` has them.
        query_marks: `(m, s)` as `load_query_marks` has it.
        REGION: of the tile.
        OF_MASK: whether `dS` is for the mask, which is added after the cap.
        SPEC: of the kernel.
    """
    i = i0 + tl.arange(0, SPEC.block_m)
    j = tile_keys(args, j0, SPEC)
    c = tl.arange(0, SPEC.block_n)
    pairs = Pairs(b, h, i[:, None], j[None, :], j0, c[None, :])
    AT_END: tl.constexpr = REGION == LEFT or REGION == RIGHT
    HAS_ROW_MAX: tl.constexpr = adds_to_rows(REGION, SPEC) and end_stats is not None
    HAS_DELTA: tl.constexpr = adds_to_deltas(REGION, SPEC) and end_stats is not None
    dots = tl.dot(q, tl.trans(k), input_precision=SPEC.precision)
    if SPEC.has_keys and not HAS_ROW_MAX:
        if AT_END:
            _, q_rel = load_queries(args, b, h, i, SPEC, AGAIN=True)
            dots += end_dot(args, KEYS, h, q_rel, REGION, SPEC)[:, None]
        else:
            dots += tile_dot_rows(args, KEYS, h, q_rel, i0, j0, SPEC)
    if SPEC.has_queries:
        dots += tile_dot_queries(args, h, k, i0, j0, REGION, SPEC)
    if SPEC.grid_by_rows:
        dots += dots_of_places(args, b, h, i, j0, SPEC)
    key_logits = load_key_logits(args, b, h, i, SPEC)
    of_axes = logits_of_axes(key_logits, key_marks, query_logits, query_marks, SPEC)
    scores, slope = tile_scores(args, pairs, dots, of_axes, REGION, SPEC.ragged_keys, SPEC)

    stats = load_row_stats(softmax, delta, args, b, h, i, num_score_rows)
    of_region = 0 if REGION == LEFT else num_score_rows
    if HAS_ROW_MAX:
        row_max = load_by_query(end_stats + of_region, args, b, h, i, float("inf"))
        stats = RowStats(row_max, stats.inverse_sum, stats.delta)
    if HAS_DELTA:
        region_delta = end_stats + 2 * num_score_rows + of_region
        region_delta = load_by_query(region_delta, args, b, h, i, 0.0)
        stats = RowStats(stats.row_max, stats.inverse_sum, region_delta)
    tile_stats = stats
    if SPEC.grid_by_rows:
        row_max = stats.row_max - bits_of_row(args, b, h, i, j0, SPEC)
        tile_stats = RowStats(row_max, stats.inverse_sum, stats.delta)
    exps = tile_exponentials(args, scores, tile_stats, SPEC)
    d_out_dots = tl.dot(d_o, tl.trans(v), input_precision=SPEC.precision)
    if SPEC.has_values and not HAS_DELTA:
        if AT_END:
            d_o = load_outputs(d_out, args, b, h, i, SPEC, AGAIN=True)
            d_out_dots += end_dot(args, VALUES, h, d_o, REGION, SPEC)[:, None]
        else:
            d_out_dots += tile_dot_rows(args, VALUES, h, d_o, i0, j0, SPEC)
    if OF_MASK:
        slope = 1.0
    if SPEC.has_axis_weights and SPEC.axes_by_product:
        d_weights = load_by_key_coordinate(d_axis_weights, args, b, h, i, False, SPEC)
        d_out_dots += times_marks(d_weights, key_marks, False, SPEC)
    return tile_d_scores(
        args, pairs, stats, exps, slope, d_out_dots, d_axis_weights, SPEC.axes_by_product, SPEC
    )
