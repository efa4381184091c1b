"""From dot products to scores, and from scores to `dS`: the same for every kernel.

    x_ij  = scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i] + grid          in logits
    s_ij  = cap(x_ij) + mask
    P_ij  = exp(s_ij - max_i) * inverse_sum_i
    dP_ij = dO_i . (v_j + V[j-i]) + grid
    dS_ij = P_ij (dP_ij - delta_i) cap'(x_ij)          the mask's gradient is without `cap'`

`p` is `q_rel`, or `q` where there is none; `cap(x)` is `c tanh(x / c)` with a softcap of c, else x.
Kernels differ in how they come by the dot products with the tables, which are arguments here; a
tile is of any form that `structs.Pairs` names.

A GPU has powers of two and no others, so that exponents are wanted in bits, log2(e) to a logit. As
a rule what is left of a score after the largest one is subtracted is multiplied by that. Where
nothing in logits comes to the products but a bias, over the scale (`SPEC.scale_last`), they stay as
they are, and the scale and log2(e) go into the one instruction that subtracts; `row_max` is in bits
then (`SPEC.in_bits`).
"""

import triton
import triton.language as tl

from ..kernel_args import BIAS_MARGIN
from .grid_terms import by_key_coordinate, grid_logits
from .masks import load_mask, survives_dropout, takes_part
from .regions import BAND, LEFT, RIGHT, row_of_first_key, table_row
from .structs import RowStats
from .tiles import load_by_query, load_outputs, rounded_off_scale

_BIAS_MARGIN = tl.constexpr(BIAS_MARGIN)
LOG2_E = tl.constexpr(1.4426950408889634)
LOG_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def tile_scores(
    args, pairs, dots, of_axes, REGION: tl.constexpr, CHECK_END: tl.constexpr, SPEC: tl.constexpr
):
    """The scores of a tile, -inf where a pair takes no part, and `cap'`, 1 without a softcap.

    With `SPEC.scale_last` they are not yet scaled.

    Args:
        args: of the kernel.
        pairs: of the tile.
        dots: `q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]`, of the tile's shape.
        of_axes: `grid_products.logits_of_axes`; None for a tile of another form than `(m, n)`.
        REGION: of the tile.
        CHECK_END: whether some `j` may be beyond the last key.
        SPEC: of the kernel.
    """
    AT_END: tl.constexpr = REGION == LEFT or REGION == RIGHT
    if SPEC.has_bias:
        bias = tile_bias(args, pairs, REGION, SPEC)
        if SPEC.bias_over_scale and (SPEC.scale_last or not AT_END):
            dots += bias
    scores = dots if SPEC.scale_last else dots * args.inputs.scale
    if SPEC.has_bias:
        if not SPEC.bias_over_scale:
            scores += bias
        elif AT_END and not SPEC.scale_last:
            scores += bias * args.inputs.scale
    if SPEC.num_axes and not SPEC.grid_by_rows:
        scores += grid_logits(args, pairs, of_axes, SPEC)
    slope = 1.0
    if SPEC.has_softcap:
        capped = tanh(scores * (1.0 / args.inputs.softcap))
        scores = capped * args.inputs.softcap
        slope = 1.0 - capped * capped
    if SPEC.mask_kind == "additive":
        scores += load_mask(args, pairs, SPEC).to(tl.float32)
    if SPEC.mask_kind == "boolean":
        scores = tl.where(load_mask(args, pairs, SPEC) != 0, scores, float("-inf"))
    HIDE_AHEAD: tl.constexpr = SPEC.is_causal and (REGION != LEFT or SPEC.left_sees_ahead)
    WINDOW: tl.constexpr = SPEC.has_min_offset or SPEC.has_max_offset
    LOCAL: tl.constexpr = WINDOW or SPEC.has_tile_ranges
    if HIDE_AHEAD or CHECK_END or LOCAL:
        visible = takes_part(args, pairs, HIDE_AHEAD, CHECK_END, SPEC)
        scores = tl.where(visible, scores, float("-inf"))
    return scores, slope


@triton.jit
def tile_bias(args, pairs, REGION: tl.constexpr, SPEC: tl.constexpr):
    """`bias_table` at the pairs' offsets: of the tile's shape, or one number."""
    table = args.inputs.bias_table
    bias = table.ptr + tl.cast(pairs.h, tl.int64) * table.stride_h + _BIAS_MARGIN
    if REGION == LEFT:
        return tl.load(bias)
    elif REGION == RIGHT:
        return tl.load(bias + args.table_rows - 1)
    elif REGION == BAND:
        # A constant from one place to the next, which is part of the instruction that loads.
        of_first_key = bias + row_of_first_key(args, pairs)
        return tl.load(of_first_key + pairs.c)
    else:
        return tl.load(bias + table_row(args, pairs))


@triton.jit
def tanh(x):
    """`tanh(x)` to a few units in the last place: its series where `1 - exp(-2 |x|)` cancels."""
    size = tl.abs(x)
    near = tl.where(size < 0.25, x, 0.0)
    z = near * near
    series = near + near * z * (-1 / 3 + z * (2 / 15 + z * (-17 / 315 + z * (62 / 2835))))
    e = tl.exp2(size * (-2.0 * LOG2_E))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(size < 0.25, series, tl.where(x < 0, -far, far))


@triton.jit
def largest(args, scores, SPEC: tl.constexpr):
    """The largest of each row of `scores (m, n)`, in what `row_max` is in: `(m,)`."""
    found = tl.max(scores, 1)
    return found * bits_of_score(args, SPEC) if SPEC.in_bits else found


@triton.jit
def bits_of_score(args, SPEC: tl.constexpr):
    """What a score of 1 is in bits."""
    return args.inputs.scale * LOG2_E if SPEC.scale_last else LOG2_E


@triton.jit
def exponentials(args, scores, row_max, SPEC: tl.constexpr):
    """`exp(score - row_max)` of each of `scores (m, n)`, with a finite `row_max (m,)`, or inf."""
    if SPEC.in_bits:
        return tl.exp2(scores * bits_of_score(args, SPEC) - row_max[:, None])
    else:
        return tl.exp2((scores - row_max[:, None]) * LOG2_E)


@triton.jit
def rescaling(row_max, new_max, SPEC: tl.constexpr):
    """`exp(row_max - new_max)`: `(m,)` each, of which `new_max` is finite."""
    return tl.exp2(row_max - new_max if SPEC.in_bits else (row_max - new_max) * LOG2_E)


@triton.jit
def log_sum_exp(row_max, row_sum, SPEC: tl.constexpr):
    """In nats, of rows whose exponentials sum up to `row_sum (m,)`."""
    largest_logit = row_max * LOG_2 if SPEC.in_bits else row_max
    return largest_logit + tl.log2(row_sum) * LOG_2


@triton.jit
def delta_of_outputs(
    out, rounded_off, d_o, d_lse, args, b, h, i, HAS_D_LSE: tl.constexpr, SPEC: tl.constexpr
):
    """`dO_i . o_i - d_lse_i` of the queries `i (m,)`, with `d_o (m, dv)`: `(m,)`."""
    o = load_outputs(out, args, b, h, i, SPEC).to(tl.float32)
    if rounded_off is not None:
        lost = load_outputs(rounded_off, args, b, h, i, SPEC)
        o += lost.to(tl.float32) * (1.0 / rounded_off_scale(lost.dtype))
    delta = tl.sum(d_o.to(tl.float32) * o, 1)
    if HAS_D_LSE:
        delta -= load_by_query(d_lse, args, b, h, i, 0.0)
    return delta


@triton.jit
def load_row_stats(softmax, delta, args, b, h, i, num_score_rows):
    """What the softmax and `delta` of the queries `i (m,)` are.

    Args:
        softmax: `(2, b, h, i)`: `row_max` and `inverse_sum`.
        delta: `(b, h, i)`.
        args: of the kernel.
        b: number of the sequence.
        h: number of the query head.
        i: numbers of the queries.
        num_score_rows: `b * h * i`, int64.
    """
    return RowStats(
        load_by_query(softmax, args, b, h, i, float("inf")),
        load_by_query(softmax + num_score_rows, args, b, h, i, 0.0),
        load_by_query(delta, args, b, h, i, 0.0),
    )


@triton.jit
def tile_exponentials(args, scores, stats, SPEC: tl.constexpr):
    """`P` before it is normalized, of the tile's shape.

    It is 0 in rows without keys, whose `row_max` is infinite.

    Args:
        args: of the kernel.
        scores: of the tile, whose rows are queries.
        stats: of these queries.
        SPEC: of the kernel.
    """
    return exponentials(args, scores, stats.row_max, SPEC)


@triton.jit
def tile_d_scores(
    args, pairs, stats, exps, slope, d_out_dots, d_axis_weights, HAS_AXES: tl.constexpr,
    SPEC: tl.constexpr,
):  # fmt: skip
    """The weights that dropout leaves, scaled up, and `dS`: of the tile's shape each.

    Both normalize in as few operations as they have: `dS = e (dP / sum - delta / sum)`.

    Args:
        args: of the kernel.
        pairs: of the tile, whose rows are queries.
        stats: of these queries.
        exps: `tile_exponentials`.
        slope: `cap'`, or 1 to leave it out.
        d_out_dots: `dO_i . (v_j + V[j-i])`.
        d_axis_weights: TokenTensor `(b, h, i, s)`, None without a grid's values.
        HAS_AXES: whether `d_out_dots` already has what these add.
        SPEC: of the kernel.
    """
    inverse_sum = stats.inverse_sum[:, None]
    d_weights = d_out_dots
    if SPEC.has_axis_weights and not HAS_AXES:
        d_weights += by_key_coordinate(d_axis_weights, args, pairs, SPEC.num_axes)
    weights_after_dropout = exps * inverse_sum
    if SPEC.has_dropout:
        survives = survives_dropout(args, pairs, SPEC)
        weights_after_dropout = tl.where(survives, weights_after_dropout, 0.0)
        weights_after_dropout *= args.inputs.keep_scale
        d_weights = tl.where(survives, d_weights * args.inputs.keep_scale, 0.0)
    d_scores = exps * (d_weights * inverse_sum - stats.delta[:, None] * inverse_sum)
    if SPEC.has_softcap:
        d_scores *= slope
    return weights_after_dropout, d_scores
