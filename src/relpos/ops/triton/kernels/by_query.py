"""Backward, one tile of queries at a time: gradients of `q`, `q_rel` and of a grid's terms.

    dS_ij = P_ij (dO_i . (v_j + V[j-i]) - delta_i)        delta_i = dO_i . o_i - d_lse_i
    dq_i  = scale * (sum_j dS_ij k_j + sum_j dS_ij K[j-i])

The row sums of what other kernels need go out as well: `delta`, and how much of `dS` and of the
weights meets the tables' two end rows.
"""

import triton
import triton.language as tl

from ..call import SizedCall, Sizes
from .band import begin_kept, begin_products, first_row, keep, next_products, read_products, take
from .products import queries_products
from .scores import (
    BAND,
    LEFT,
    all_place_marks,
    by_place,
    complete_scores,
    regions,
    row_sums_beyond,
    tile_of,
)
from .tiles import (
    load_keys,
    load_rows,
    load_table,
    load_table_row,
    store_rows,
    weights_kept,
    zeros,
    zeros_in_row,
)


@triton.jit
def load_row_numbers(x, b, h, i, call, other):
    """Numbers `(b, h, i)` of the queries `i`; `other` beyond the last."""
    head = (tl.cast(b, tl.int64) * call.given.heads + h) * call.length
    return tl.load(x + head + i, mask=i < call.length, other=other)


@triton.jit
def load_softmax(softmax, b, h, i, call, all_rows):
    """The largest score and 1 over the sum, for `weights_of`."""
    return (
        load_row_numbers(softmax, b, h, i, call, float("inf")),
        load_row_numbers(softmax + all_rows, b, h, i, call, 0.0),
    )


@triton.jit
def weights_of(x, top, inverse):
    """The weights of scores `x (m, n)`; 0 in rows without keys, whose `top` is infinite."""
    return tl.exp(x - top[:, None]) * inverse[:, None]


@triton.jit(do_not_specialize=Sizes._fields)
def by_query_kernel(
    call, length, key_length, start, window_first, window_rows, all_tiles,
    out, softmax, d_out, d_lse, places, d_places, d_q, d_p, d_by_key, delta, ends,
    S: tl.constexpr, D_LSE: tl.constexpr, D_Q: tl.constexpr, D_P: tl.constexpr,
    D_BY_KEY: tl.constexpr, D_TABLES: tl.constexpr,
):  # fmt: skip
    """Write `d_q`, `d_p` (where `p` is not `q`), `d_by_key`, `delta (b, h, i)` and `ends`.

    `ends (4, b, h, i)`: the sums of `dS` over the keys that meet the tables' first row and their
    last one, and those of the weights that dropout leaves.
    """
    call = SizedCall(call, length, key_length, start, window_first, window_rows, all_tiles)
    W: tl.constexpr = S.ring
    # Products with K and with V, and dS, each by place (`band.py`).
    key_slab = call.given.slabs + tl.cast(tl.program_id(0), tl.int64) * S.slab
    value_slab = key_slab + (S.m * W if S.keys else 0)
    kept_slab = value_slab + (S.m * W if S.values else 0)
    crossed = kept_slab + (S.m * W if S.keys else 0)
    TO_P: tl.constexpr = S.keys and (D_P if S.own_p else D_Q)
    tiles = tl.cdiv(call.length, S.m)
    all_rows = tl.cast(call.tiles // tiles, tl.int64) * call.length
    for tile in range(tl.program_id(0), call.tiles, tl.num_programs(0)):
        b, h, number = tile_of(tile, tiles, call)
        g = h // call.given.repeat
        i0 = number * S.m
        i = i0 + tl.arange(0, S.m)
        q = load_rows(call.given.q, b, h, i, call.length, S.d, S.block_d, S)
        p = q
        if S.own_p:
            p = load_rows(call.given.p, b, h, i, call.length, S.dp, S.block_p, S)
        d_o = load_rows(d_out, b, h, i, call.length, S.dv, S.block_v, S)
        o = load_rows(out, b, h, i, call.length, S.dv, S.block_v, S)
        less = tl.sum(d_o.to(tl.float32) * o.to(tl.float32), 1)
        if S.places:
            summed = load_rows(places, b, h, i, call.length, S.key_columns, S.block_places, S)
            d_summed = load_rows(d_places, b, h, i, call.length, S.key_columns, S.block_places, S)
            less += tl.sum(summed * d_summed, 1)
        if D_LSE:
            less -= load_row_numbers(d_lse, b, h, i, call, 0.0)
        head = (tl.cast(b, tl.int64) * call.given.heads + h) * call.length
        top, inverse = load_softmax(softmax, b, h, i, call, all_rows)
        less = tl.where(inverse > 0, less, 0.0)  # what flows into a row without keys may be NaN
        tl.store(delta + head + i, less, mask=i < call.length)
        acc = zeros(S.m, S.block_d)
        if TO_P:
            acc_p = zeros(S.m, S.block_p)
        if D_TABLES or TO_P:
            left_scores = zeros_in_row(S.m)
            right_scores = zeros_in_row(S.m)
        if D_TABLES:
            left_weights = zeros_in_row(S.m)
            right_weights = zeros_in_row(S.m)
        if D_BY_KEY:
            acc_places = zeros(S.m, S.block_places)

        begin, left, right, end = regions(call, b, i0, S)
        row = first_row(call, i0, left, S)
        if (S.keys or S.values) and left < right:
            tl.debug_barrier()  # the tile before may still be read
            if S.keys:
                begin_products(call, key_slab, p, call.given.keys_table, h, row, S.dp, S.block_p, S)
            if S.values:
                begin_products(
                    call, value_slab, d_o, call.given.values_table, h, row, S.dv, S.block_v, S
                )
            if TO_P:
                begin_kept(call, kept_slab, 0.0, S)
            tl.debug_barrier()

        for REGION in tl.static_range(3):
            lower = begin if REGION == LEFT else (left if REGION == BAND else right)
            upper = left if REGION == LEFT else (right if REGION == BAND else end)
            if REGION != BAND:
                end_row = 0 if REGION == LEFT else call.rows - 1
                if S.keys:
                    end_keys = load_table_row(call.given.keys_table, h, end_row, S.dp, S.block_p)
                    far = tl.sum(p.to(tl.float32) * end_keys[None, :], 1)
                if S.values:
                    end_values = load_table_row(
                        call.given.values_table, h, end_row, S.dv, S.block_v
                    )
                    far_value = tl.sum(d_o.to(tl.float32) * end_values[None, :], 1)
            for j0 in range(lower, upper, S.n):
                j = j0 + tl.arange(0, S.n)
                k = load_keys(call.given.k, call, b, g, j, S.d, S.block_d, S)
                v = load_keys(call.given.v, call, b, g, j, S.dv, S.block_v, S)
                x = tl.dot(q, tl.trans(k), input_precision=S.precision)
                d_weights = tl.dot(d_o, tl.trans(v), input_precision=S.precision)
                u = j0 - left
                if S.keys:
                    if REGION == BAND:
                        x += read_products(call, key_slab, i[:, None], j[None, :], u, S)
                    else:
                        x += far[:, None]
                if S.values:
                    if REGION == BAND:
                        d_weights += read_products(call, value_slab, i[:, None], j[None, :], u, S)
                    else:
                        d_weights += far_value[:, None]
                if S.queries:
                    x += queries_products(call, h, k, i0, j0, crossed, REGION, S)
                if S.places:
                    d_weights += by_place(
                        d_places, call.given.key_places, b, h, i[:, None], call.length, j[None, :],
                        call.key_length, S.axes,
                    )  # fmt: skip
                x = complete_scores(call, b, h, i[:, None], j[None, :], x, REGION, S.ragged, S)
                weights = weights_of(x, top, inverse)
                if S.dropout:
                    kept = weights_kept(call, b, h, i[:, None], j[None, :])
                    d_weights = tl.where(kept, d_weights * call.given.kept, 0.0)
                d_scores = weights * (d_weights - less[:, None])
                acc += tl.dot(d_scores.to(k.dtype), k, input_precision=S.precision)
                if D_BY_KEY:
                    marks = all_place_marks(
                        call.given.key_places, j, call.key_length, S.axes, S.block_places
                    )
                    acc_places += tl.dot(
                        d_scores.to(k.dtype), marks.to(k.dtype), input_precision=S.precision
                    )
                if D_TABLES or TO_P:
                    before, after = row_sums_beyond(call, i, j, d_scores, REGION)
                    left_scores += before
                    right_scores += after
                if D_TABLES:
                    if S.dropout:
                        weights = tl.where(kept, weights * call.given.kept, 0.0)
                    before, after = row_sums_beyond(call, i, j, weights, REGION)
                    left_weights += before
                    right_weights += after
                if TO_P and REGION == BAND:
                    keep(call, kept_slab, i[:, None], j[None, :], u, d_scores, S)
                if REGION == BAND and not S.whole:
                    if S.keys:
                        next_products(
                            call, key_slab, p, call.given.keys_table, h, row, u, S.dp, S.block_p, S
                        )
                    if S.values:
                        next_products(
                            call,
                            value_slab,
                            d_o,
                            call.given.values_table,
                            h,
                            row,
                            u,
                            S.dv,
                            S.block_v,
                            S,
                        )
                    if S.keys or S.values:
                        tl.debug_barrier()
                    if TO_P:
                        acc_p += _keys_by_offset(
                            call, h, kept_slab, row, u, left, right, k.dtype, S
                        )
            if TO_P and REGION == BAND and not S.whole:
                if left < right:
                    for part in tl.static_range(S.m // S.n):
                        u = right - left + part * S.n
                        acc_p += _keys_by_offset(
                            call, h, kept_slab, row, u, left, right, q.dtype, S
                        )

        if TO_P:
            if S.whole:
                if left < right:
                    tl.debug_barrier()
                    for u in range(0, call.rows, S.n):
                        acc_p += _keys_by_offset(
                            call, h, kept_slab, row, u, left, right, q.dtype, S
                        )
            end_keys = load_table_row(call.given.keys_table, h, 0, S.dp, S.block_p)
            acc_p += left_scores[:, None] * end_keys[None, :]
            end_keys = load_table_row(call.given.keys_table, h, call.rows - 1, S.dp, S.block_p)
            acc_p += right_scores[:, None] * end_keys[None, :]
        if D_Q:
            if TO_P and not S.own_p:
                acc += acc_p
            store_rows(d_q, b, h, i, call.length, acc * call.given.scale, S.d, S.block_d, S)
        if TO_P and S.own_p:
            store_rows(d_p, b, h, i, call.length, acc_p * call.given.scale, S.dp, S.block_p, S)
        if D_TABLES:
            tl.store(ends + head + i, left_scores, mask=i < call.length)
            tl.store(ends + all_rows + head + i, right_scores, mask=i < call.length)
            tl.store(ends + 2 * all_rows + head + i, left_weights, mask=i < call.length)
            tl.store(ends + 3 * all_rows + head + i, right_weights, mask=i < call.length)
        if D_BY_KEY:
            store_rows(d_by_key, b, h, i, call.length, acc_places, S.key_columns, S.block_places, S)


@triton.jit
def _keys_by_offset(call, h, kept_slab, row, u, left, right, dtype: tl.constexpr, S: tl.constexpr):
    """`dS` at places `u..u + n - 1` of the slab, times their rows of the keys' table."""
    d_scores = take(call, kept_slab, row, u, left, right, 0.0, S)
    rows = load_table(
        call.given.keys_table, h, row + u + tl.arange(0, S.n), call.rows, S.dp, S.block_p
    )
    return tl.dot(d_scores.to(dtype), rows, input_precision=S.precision)
