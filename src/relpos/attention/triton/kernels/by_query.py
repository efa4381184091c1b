"""Backward, one tile of queries at a time: gradients of `q`, `q_rel` and of a grid's terms.

    dS_ij = P_ij (dO_i . (v_j + V[j-i]) - delta_i)        delta_i = dO_i . o_i - d_lse_i
    dq_i  = scale * (sum_j dS_ij k_j + sum_j dS_ij K[j-i])

The row sums of what other kernels need go out as well: `delta`, and how much of `dS` and of the
weights meets the tables' two end rows.
"""

import triton
import triton.language as tl

from .products import queries_products
from .scores import BAND, LEFT, all_place_marks, by_place, complete_scores, regions, tile_of
from .shear import read_by_key, read_by_offset, write_by_key, write_products
from .tiles import (
    LOG2E,
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
    head = (tl.cast(b, tl.int64) * call.heads + h) * call.length
    return tl.load(x + head + i, mask=i < call.length, other=other)


@triton.jit
def load_shift(lse, b, h, i, call):
    """The log-sum-exp in units of log 2; infinite for a query without keys, whose weights are 0."""
    nats = load_row_numbers(lse, b, h, i, call, float("-inf"))
    return tl.where(nats == float("-inf"), float("inf"), nats * LOG2E)


@triton.jit
def by_query_kernel(
    call, out, lse, d_out, d_lse, places, d_places, d_q, d_p, d_by_key, delta, ends,
    S: tl.constexpr, D_LSE: tl.constexpr, D_Q: tl.constexpr, D_P: tl.constexpr,
    D_BY_KEY: tl.constexpr, D_TABLES: tl.constexpr,
):  # fmt: skip
    """Write `d_q`, `d_p` (where `p` is not `q`), `d_by_key`, `delta (b, h, i)` and `ends`.

    `ends (4, b, h, i)`: the sums of `dS` over the keys that meet the tables' first row and their
    last one, and those of the weights that dropout leaves.
    """
    W: tl.constexpr = S.ring
    # What the tables' gradients need: products with K and V by offset, and dS by offset.
    ring = call.slabs + tl.cast(tl.program_id(0), tl.int64) * S.slab
    value_ring = ring + (S.m * W if S.keys else 0)
    score_ring = value_ring + (S.m * W if S.values else 0)
    crossed = score_ring + (S.m * W if S.keys else 0)
    TO_P: tl.constexpr = S.keys and (D_P if S.own_p else D_Q)
    tiles = tl.cdiv(call.length, S.m)
    for tile in range(tl.program_id(0), call.tiles, tl.num_programs(0)):
        b, h, number = tile_of(tile, tiles, call)
        g = h // call.repeat
        i0 = number * S.m
        i = i0 + tl.arange(0, S.m)
        q = load_rows(call.q, b, h, i, call.length, S.d, S.block_d, S)
        p = q
        if S.own_p:
            p = load_rows(call.p, b, h, i, call.length, S.dp, S.block_p, S)
        d_o = load_rows(d_out, b, h, i, call.length, S.dv, S.block_v, S)
        o = load_rows(out, b, h, i, call.length, S.dv, S.block_v, S)
        less = tl.sum(d_o.to(tl.float32) * o.to(tl.float32), 1)
        if S.places:
            summed = load_rows(places, b, h, i, call.length, S.key_columns, S.block_places, S)
            d_summed = load_rows(d_places, b, h, i, call.length, S.key_columns, S.block_places, S)
            less += tl.sum(summed * d_summed, 1)
        if D_LSE:
            less -= load_row_numbers(d_lse, b, h, i, call, 0.0)
        head = (tl.cast(b, tl.int64) * call.heads + h) * call.length
        tl.store(delta + head + i, less, mask=i < call.length)
        shift = load_shift(lse, b, h, i, call)
        acc = zeros(S.m, S.block_d)
        if TO_P:
            acc_p = zeros(S.m, S.block_p)
        if D_TABLES:
            left_scores = zeros_in_row(S.m)
            right_scores = zeros_in_row(S.m)
            left_weights = zeros_in_row(S.m)
            right_weights = zeros_in_row(S.m)
        if D_BY_KEY:
            acc_places = zeros(S.m, S.block_places)

        begin, left, right, end = regions(call, b, i0, S)
        row = left - (call.start + i0 + S.m - 1) - call.first
        if (S.keys or S.values) and left < right:
            tl.debug_barrier()  # the tile before may still be read
            for part in tl.static_range(S.m // S.n + 1):
                _write_both(call, h, ring, value_ring, p, d_o, row, part * S.n, S)
            tl.debug_barrier()

        for REGION in tl.static_range(3):
            lower = begin if REGION == 0 else (left if REGION == 1 else right)
            upper = left if REGION == 0 else (right if REGION == 1 else end)
            if REGION != BAND:
                end_row = 0 if REGION == LEFT else call.rows - 1
                if S.keys:
                    end_keys = load_table_row(call.keys_table, h, end_row, S.dp, S.block_p)
                    far = tl.sum(p.to(tl.float32) * end_keys[None, :], 1)
                if S.values:
                    end_values = load_table_row(call.values_table, h, end_row, S.dv, S.block_v)
                    far_value = tl.sum(d_o.to(tl.float32) * end_values[None, :], 1)
                far_scores = zeros_in_row(S.m)
            for j0 in range(lower, upper, S.n):
                j = j0 + tl.arange(0, S.n)
                k = load_rows(call.k, b, g, j, call.key_length, S.d, S.block_d, S)
                v = load_rows(call.v, b, g, j, call.key_length, S.dv, S.block_v, S)
                x = tl.dot(q, tl.trans(k), input_precision=S.precision)
                d_weights = tl.dot(d_o, tl.trans(v), input_precision=S.precision)
                u = j0 - left
                if S.keys:
                    if REGION == BAND:
                        x += read_by_key(ring, W, u, S.m, S.n)
                    else:
                        x += far[:, None]
                if S.values:
                    if REGION == BAND:
                        d_weights += read_by_key(value_ring, W, u, S.m, S.n)
                    else:
                        d_weights += far_value[:, None]
                if S.queries:
                    x += queries_products(call, h, k, i0, j0, crossed, REGION, S)
                if S.places:
                    d_weights += by_place(
                        d_places, call.key_places, b, h, i[:, None], call.length, j[None, :],
                        call.key_length, S.axes,
                    )  # fmt: skip
                x = complete_scores(call, b, h, i[:, None], j[None, :], x, REGION, S.ragged, S)
                weights = tl.exp2(x - shift[:, None])
                if S.dropout:
                    kept = weights_kept(call, b, h, i[:, None], j[None, :])
                    d_weights = tl.where(kept, d_weights * call.kept, 0.0)
                d_scores = weights * (d_weights - less[:, None])
                acc += tl.dot(d_scores.to(k.dtype), k, input_precision=S.precision)
                if D_BY_KEY:
                    marks = all_place_marks(
                        call.key_places, j, call.key_length, S.axes, S.block_places
                    )
                    acc_places += tl.dot(
                        d_scores.to(k.dtype), marks.to(k.dtype), input_precision=S.precision
                    )
                if TO_P and REGION != BAND:
                    far_scores += tl.sum(d_scores, 1)
                if D_TABLES:
                    if S.dropout:
                        weights = tl.where(kept, weights * call.kept, 0.0)
                    offset = j[None, :] - (call.start + i)[:, None]
                    scores_before, scores_after = _beyond(call, offset, d_scores, REGION)
                    weights_before, weights_after = _beyond(call, offset, weights, REGION)
                    left_scores += scores_before
                    right_scores += scores_after
                    left_weights += weights_before
                    right_weights += weights_after
                if (S.keys or S.values) and REGION == BAND:
                    if TO_P:
                        write_by_key(score_ring, W, u, d_scores, S.m, S.n)
                    _write_both(call, h, ring, value_ring, p, d_o, row, u + S.m + S.n, S)
                    tl.debug_barrier()
                    if TO_P:
                        acc_p += _keys_by_offset(
                            call, h, score_ring, row, u, left, right, k.dtype, S
                        )
            if REGION != BAND:
                if TO_P:
                    acc_p += far_scores[:, None] * end_keys[None, :]
            elif TO_P and left < right:
                for part in tl.static_range(S.m // S.n):
                    acc_p += _keys_by_offset(
                        call, h, score_ring, row, right - left + part * S.n, left, right,
                        q.dtype, S,
                    )  # fmt: skip

        if D_Q:
            if TO_P and not S.own_p:
                acc += acc_p
            store_rows(d_q, b, h, i, call.length, acc * call.scale, S.d, S.block_d, S)
        if TO_P and S.own_p:
            store_rows(d_p, b, h, i, call.length, acc_p * call.scale, S.dp, S.block_p, S)
        if D_TABLES:
            all_rows = tl.cast(call.tiles // tiles, tl.int64) * call.length
            tl.store(ends + head + i, left_scores, mask=i < call.length)
            tl.store(ends + all_rows + head + i, right_scores, mask=i < call.length)
            tl.store(ends + 2 * all_rows + head + i, left_weights, mask=i < call.length)
            tl.store(ends + 3 * all_rows + head + i, right_weights, mask=i < call.length)
        if D_BY_KEY:
            store_rows(d_by_key, b, h, i, call.length, acc_places, S.key_columns, S.block_places, S)


@triton.jit
def _beyond(call, offset, x, REGION: tl.constexpr):
    """The row sums of `x` over the pairs that meet the tables' first row, and their last one."""
    if REGION == LEFT:
        before = tl.sum(x, 1)
        return before, tl.zeros_like(before)
    elif REGION == BAND:
        before = tl.sum(tl.where(offset <= call.first, x, 0.0), 1)
        return before, tl.sum(tl.where(offset >= call.first + call.rows - 1, x, 0.0), 1)
    else:
        after = tl.sum(x, 1)
        return tl.zeros_like(after), after


@triton.jit
def _write_both(call, h, ring, value_ring, p, d_o, row, u, S: tl.constexpr):
    """The products of offsets `u..u + n - 1` with the tables of keys and values."""
    if S.keys:
        write_products(
            ring, S.ring, p, call.keys_table, h, row + u, call.rows, u,
            S.n, S.dp, S.block_p, S,
        )  # fmt: skip
    if S.values:
        write_products(
            value_ring, S.ring, d_o, call.values_table, h, row + u, call.rows, u,
            S.n, S.dv, S.block_v, S,
        )  # fmt: skip


@triton.jit
def _keys_by_offset(call, h, score_ring, row, u, left, right, dtype: tl.constexpr, S: tl.constexpr):
    """`dS` at offsets `u..u + n - 1` of the ring, times their rows of the keys' table."""
    a = tl.arange(0, S.m)
    c = tl.arange(0, S.n)
    key = left + u + c[None, :] - (S.m - 1 - a)[:, None]
    inside = (key >= left) & (key < right)
    d_scores = read_by_offset(score_ring, S.ring, u, inside, 0.0, S.m, S.n)
    rows = load_table(call.keys_table, h, row + u + c, call.rows, S.dp, S.block_p)
    return tl.dot(d_scores.to(dtype), rows, input_precision=S.precision)
