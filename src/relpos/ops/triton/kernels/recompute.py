"""`dS` of one tile by itself, for kernels that carry nothing along from tile to tile."""

import triton
import triton.language as tl

from .offset_buffer import offset_buffer, tile_dot_queries, tile_dot_rows
from .scores import load_row_stats, tile_d_scores, tile_scores, tile_weights
from .structs import Pairs
from .tables import KEYS, VALUES


@triton.jit
def recompute_d_scores(
    args, b, h, i0, j0, q, q_rel, k, v, d_o, softmax, delta, num_score_rows, d_axis_weights,
    REGION: tl.constexpr, OF_MASK: tl.constexpr, SPEC: tl.constexpr,
):  # fmt: skip
    """The weights that dropout leaves and `dS` of the queries from `i0` and the keys from `j0`.

    `(m, n)` each. The program's first offset buffers are for the tables of keys, values and
    queries, those that there are.

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
        softmax: `(2, b, h, i)`.
        delta: `(b, h, i)`.
        num_score_rows: `b * h * i`, int64.
        d_axis_weights: TokenTensor `(b, h, i, s)`, or None.
        REGION: of the tile.
        OF_MASK: whether `dS` is for the mask, which is added after the cap.
        SPEC: of the kernel.
    """
    i = i0 + tl.arange(0, SPEC.block_m)
    j = j0 + tl.arange(0, SPEC.block_n)
    pairs = Pairs(b, h, i[:, None], j[None, :])
    keys_buffer = offset_buffer(args, 0, SPEC)
    values_buffer = offset_buffer(args, SPEC.has_keys, SPEC)
    queries_buffer = offset_buffer(args, SPEC.has_keys + SPEC.has_values, SPEC)

    dots = tl.dot(q, tl.trans(k), input_precision=SPEC.precision)
    if SPEC.has_keys:
        dots += tile_dot_rows(keys_buffer, args, KEYS, h, q_rel, i0, j0, REGION, SPEC)
    if SPEC.has_queries:
        dots += tile_dot_queries(queries_buffer, args, h, k, i0, j0, REGION, SPEC)
    scores, slope = tile_scores(args, pairs, dots, REGION, SPEC.ragged_keys, SPEC)

    stats = load_row_stats(softmax, delta, args, b, h, i, num_score_rows)
    weights = tile_weights(scores, stats)
    d_out_dots = tl.dot(d_o, tl.trans(v), input_precision=SPEC.precision)
    if SPEC.has_values:
        d_out_dots += tile_dot_rows(values_buffer, args, VALUES, h, d_o, i0, j0, REGION, SPEC)
    if OF_MASK:
        slope = 1.0
    return tile_d_scores(args, pairs, stats, weights, slope, d_out_dots, d_axis_weights, SPEC)
