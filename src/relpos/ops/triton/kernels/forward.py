"""Forward: `o_i = sum_j softmax(s_i)_j (v_j + V[j-i])`, one tile of queries at a time.

Online softmax (Milakov & Gimelshein 2018; Dao et al. 2022). In the band, the products with the
table of keys come from the program's slab, and the scores go there, to come back by offset for the
table of values (`band.py`).
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


@triton.jit(do_not_specialize=Sizes._fields)
def forward_kernel(
    call, length, key_length, start, window_first, window_rows, all_tiles,
    out, lse, softmax, places, S: tl.constexpr,
):  # fmt: skip
    """Write `out (b, h, i, dv)`, `lse (b, h, i)`, `softmax (2, b, h, i)`, `places (b, h, i, s)`.

    `softmax`: the largest score of each row and 1 over its sum, from which backward has the weights
    again: from the log-sum-exp of large scores it would not.
    """
    call = SizedCall(call, length, key_length, start, window_first, window_rows, all_tiles)
    W: tl.constexpr = S.ring
    key_slab = call.given.slabs + tl.cast(tl.program_id(0), tl.int64) * S.slab
    kept_slab = key_slab + (S.m * W if S.keys else 0)
    crossed = kept_slab + (S.m * W if S.values else 0)
    tiles = tl.cdiv(call.length, S.m)
    for tile in range(tl.program_id(0), call.tiles, tl.num_programs(0)):
        b, h, number = tile_of(tile, tiles, call)
        g = h // call.given.repeat
        i0 = number * S.m
        i = i0 + tl.arange(0, S.m)
        q = load_rows(call.given.q, b, h, i, call.length, S.d, S.block_d, S)
        p = q
        if S.own_p:
            p = load_rows(call.given.p, b, h, i, call.length, S.dp, S.block_p, S)
        acc = zeros(S.m, S.block_v)
        top = zeros_in_row(S.m) - float("inf")
        total = zeros_in_row(S.m)
        if S.places:
            by_place = zeros(S.m, S.block_places)

        begin, left, right, end = regions(call, b, i0, S)
        row = first_row(call, i0, left, S)
        if (S.keys or S.values) and left < right:
            tl.debug_barrier()  # the tile before may still be read
            if S.keys:
                begin_products(call, key_slab, p, call.given.keys_table, h, row, S.dp, S.block_p, S)
            if S.values:
                begin_kept(call, kept_slab, float("-inf"), S)
            tl.debug_barrier()

        if S.values:  # of the keys that meet the table's first row, and its last
            left_weight = zeros_in_row(S.m)
            right_weight = zeros_in_row(S.m)
        for REGION in tl.static_range(3):
            lower = begin if REGION == LEFT else (left if REGION == BAND else right)
            upper = left if REGION == LEFT else (right if REGION == BAND else end)
            if REGION != BAND:
                end_row = 0 if REGION == LEFT else call.rows - 1
                if S.keys:
                    end_keys = load_table_row(call.given.keys_table, h, end_row, S.dp, S.block_p)
                    far = tl.sum(p.to(tl.float32) * end_keys[None, :], 1)
            for j0 in range(lower, upper, S.n):
                j = j0 + tl.arange(0, S.n)
                k = load_keys(call.given.k, call, b, g, j, S.d, S.block_d, S)
                v = load_keys(call.given.v, call, b, g, j, S.dv, S.block_v, S)
                x = tl.dot(q, tl.trans(k), input_precision=S.precision)
                u = j0 - left
                if S.keys:
                    if REGION == BAND:
                        x += read_products(call, key_slab, i[:, None], j[None, :], u, S)
                    else:
                        x += far[:, None]
                if S.queries:
                    x += queries_products(call, h, k, i0, j0, crossed, REGION, S)
                x = complete_scores(call, b, h, i[:, None], j[None, :], x, REGION, S.ragged, S)

                new_top = tl.maximum(top, tl.max(x, 1))
                shift = tl.where(new_top == float("-inf"), 0.0, new_top)
                rescale = tl.exp(top - shift)
                top = new_top
                weights = tl.exp(x - shift[:, None])
                total = total * rescale + tl.sum(weights, 1)
                acc = acc * rescale[:, None]
                if S.dropout:
                    kept = weights_kept(call, b, h, i[:, None], j[None, :])
                    weights = tl.where(kept, weights, 0.0)
                acc += tl.dot(weights.to(v.dtype), v, input_precision=S.precision)
                if S.places:
                    marks = all_place_marks(
                        call.given.key_places, j, call.key_length, S.axes, S.block_places
                    )
                    by_place = by_place * rescale[:, None] + tl.dot(
                        weights.to(v.dtype), marks.to(v.dtype), input_precision=S.precision
                    )
                if S.values:
                    before, after = row_sums_beyond(call, i, j, weights, REGION)
                    left_weight = left_weight * rescale + before
                    right_weight = right_weight * rescale + after
                    if REGION == BAND:
                        if S.dropout:
                            x = tl.where(kept, x, float("-inf"))
                        keep(call, kept_slab, i[:, None], j[None, :], u, x, S)
                if REGION == BAND and not S.whole:
                    if S.keys:
                        next_products(
                            call, key_slab, p, call.given.keys_table, h, row, u, S.dp, S.block_p, S
                        )
                    if S.keys or S.values:
                        tl.debug_barrier()
                    if S.values:
                        acc += _values_by_offset(call, h, kept_slab, shift, row, u, left, right, S)
            if S.values and REGION == BAND and not S.whole:
                if left < right:
                    shift = tl.where(top == float("-inf"), 0.0, top)
                    for part in tl.static_range(S.m // S.n):
                        u = right - left + part * S.n
                        acc += _values_by_offset(call, h, kept_slab, shift, row, u, left, right, S)

        if S.values:
            if S.whole:
                if left < right:
                    tl.debug_barrier()
                    shift = tl.where(top == float("-inf"), 0.0, top)
                    for u in range(0, call.rows, S.n):
                        acc += _values_by_offset(call, h, kept_slab, shift, row, u, left, right, S)
            ends = load_table_row(call.given.values_table, h, 0, S.dv, S.block_v)
            acc += left_weight[:, None] * ends[None, :]
            ends = load_table_row(call.given.values_table, h, call.rows - 1, S.dv, S.block_v)
            acc += right_weight[:, None] * ends[None, :]
        some = total > 0
        total = tl.where(some, total, 1.0)
        share = tl.where(some, 1.0 / total, 0.0)
        if S.dropout:
            share = share * call.given.kept
        store_rows(out, b, h, i, call.length, acc * share[:, None], S.dv, S.block_v, S)
        if S.places:
            store_rows(
                places, b, h, i, call.length, by_place * share[:, None],
                S.key_columns, S.block_places, S,
            )  # fmt: skip
        row_sum = tl.where(some, top + tl.log(total), float("-inf"))
        head = (tl.cast(b, tl.int64) * call.given.heads + h) * call.length
        all_rows = tl.cast(call.tiles // tiles, tl.int64) * call.length
        known = i < call.length
        tl.store(lse + head + i, row_sum, mask=known)
        tl.store(softmax + head + i, tl.where(some, top, float("inf")), mask=known)
        tl.store(softmax + all_rows + head + i, tl.where(some, 1.0 / total, 0.0), mask=known)


@triton.jit
def _values_by_offset(call, h, kept_slab, shift, row, u, left, right, S: tl.constexpr):
    """The weights at places `u..u + n - 1` of the slab, times their rows of the values' table."""
    x = take(call, kept_slab, row, u, left, right, float("-inf"), S)
    weights = tl.exp(x - shift[:, None])
    rows = load_table(
        call.given.values_table, h, row + u + tl.arange(0, S.n), call.rows, S.dv, S.block_v
    )
    return tl.dot(weights.to(rows.dtype), rows, input_precision=S.precision)
