"""Forward: `o_i = sum_j softmax(s_i)_j (v_j + V[j-i])`, one tile of queries at a time.

Online softmax (Milakov & Gimelshein 2018; Dao et al. 2022). In the band, the keys' table is
multiplied once for each offset (a ring of products, `shear.py`), and the values' table takes the
scores back by offset when all keys of an offset have passed.
"""

import triton
import triton.language as tl

from .products import queries_products
from .scores import BAND, LEFT, all_place_marks, complete_scores, regions, tile_of
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
def forward_kernel(call, out, lse, places, S: tl.constexpr):
    """Write `out (b, h, i, dv)`, `lse (b, h, i)` in nats, and `places (b, h, i, s)`."""
    W: tl.constexpr = S.ring
    ring = call.slabs + tl.cast(tl.program_id(0), tl.int64) * S.slab
    kept_scores = ring + (S.m * W if S.keys else 0)
    crossed = kept_scores + (S.m * W if S.values else 0)
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
        acc = zeros(S.m, S.block_v)
        top = zeros_in_row(S.m) - float("inf")
        total = zeros_in_row(S.m)
        if S.places:
            by_place = zeros(S.m, S.block_places)

        begin, left, right, end = regions(call, b, i0, S)
        position = call.start + i0
        # The row of the tables at offset 0 of the ring: that of the band's first key.
        row = left - (position + S.m - 1) - call.first
        if (S.keys or S.values) and left < right:
            tl.debug_barrier()  # the tile before may still be read
            if S.keys:
                for part in tl.static_range(S.m // S.n + 1):
                    write_products(
                        ring, W, p, call.keys_table, h, row + part * S.n, call.rows, part * S.n,
                        S.n, S.dp, S.block_p, S,
                    )  # fmt: skip
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
                    far_weight = zeros_in_row(S.m)
            for j0 in range(lower, upper, S.n):
                j = j0 + tl.arange(0, S.n)
                k = load_rows(call.k, b, g, j, call.key_length, S.d, S.block_d, S)
                v = load_rows(call.v, b, g, j, call.key_length, S.dv, S.block_v, S)
                x = tl.dot(q, tl.trans(k), input_precision=S.precision)
                u = j0 - left
                if S.keys:
                    if REGION == BAND:
                        x += read_by_key(ring, W, u, S.m, S.n)
                    else:
                        x += far[:, None]
                if S.queries:
                    x += queries_products(call, h, k, i0, j0, crossed, REGION, S)
                x = complete_scores(call, b, h, i[:, None], j[None, :], x, REGION, S.ragged, S)

                new_top = tl.maximum(top, tl.max(x, 1))
                shift = tl.where(new_top == float("-inf"), 0.0, new_top)
                rescale = tl.exp2(top - shift)
                top = new_top
                weights = tl.exp2(x - shift[:, None])
                total = total * rescale + tl.sum(weights, 1)
                acc = acc * rescale[:, None]
                if S.dropout:
                    kept = weights_kept(call, b, h, i[:, None], j[None, :])
                    weights = tl.where(kept, weights, 0.0)
                acc += tl.dot(weights.to(v.dtype), v, input_precision=S.precision)
                if S.places:
                    marks = all_place_marks(
                        call.key_places, j, call.key_length, S.axes, S.block_places
                    )
                    by_place = by_place * rescale[:, None] + tl.dot(
                        weights.to(v.dtype), marks.to(v.dtype), input_precision=S.precision
                    )
                if S.values and REGION != BAND:
                    far_weight = far_weight * rescale + tl.sum(weights, 1)
                if (S.keys or S.values) and REGION == BAND:
                    if S.values:
                        if S.dropout:
                            x = tl.where(kept, x, float("-inf"))
                        write_by_key(kept_scores, W, u, x, S.m, S.n)
                    if S.keys:
                        beyond = u + S.m + S.n  # what the next tile needs besides
                        write_products(
                            ring, W, p, call.keys_table, h, row + beyond, call.rows, beyond,
                            S.n, S.dp, S.block_p, S,
                        )  # fmt: skip
                    tl.debug_barrier()
                    if S.values:
                        acc += _values_by_offset(
                            call, h, kept_scores, shift, row, u, i0, left, right, v, S
                        )
            if S.values:
                if REGION == BAND:
                    if left < right:
                        shift = tl.where(top == float("-inf"), 0.0, top)
                        for part in tl.static_range(S.m // S.n):
                            acc += _values_by_offset(
                                call, h, kept_scores, shift, row, right - left + part * S.n,
                                i0, left, right, q, S,
                            )  # fmt: skip
                else:
                    end_values = load_table_row(call.values_table, h, end_row, S.dv, S.block_v)
                    acc += far_weight[:, None] * end_values[None, :]

        some = total > 0
        total = tl.where(some, total, 1.0)
        share = tl.where(some, 1.0 / total, 0.0)
        if S.dropout:
            share = share * call.kept
        store_rows(out, b, h, i, call.length, acc * share[:, None], S.dv, S.block_v, S)
        if S.places:
            store_rows(
                places, b, h, i, call.length, by_place * share[:, None],
                S.key_columns, S.block_places, S,
            )  # fmt: skip
        nats = tl.where(some, (top + tl.log2(total)) / LOG2E, float("-inf"))
        head = (tl.cast(b, tl.int64) * call.heads + h) * call.length
        tl.store(lse + head + i, nats, mask=i < call.length)


@triton.jit
def _values_by_offset(call, h, kept_scores, shift, row, u, i0, left, right, like, S: tl.constexpr):
    """The weights at offsets `u..u + n - 1` of the ring, times their rows of the values' table."""
    a = tl.arange(0, S.m)
    c = tl.arange(0, S.n)
    key = left + u + c[None, :] - (S.m - 1 - a)[:, None]
    inside = (key >= left) & (key < right)
    x = read_by_offset(kept_scores, S.ring, u, inside, float("-inf"), S.m, S.n)
    weights = tl.exp2(x - shift[:, None])
    rows = load_table(call.values_table, h, row + u + c, call.rows, S.dv, S.block_v)
    return tl.dot(weights.to(rows.dtype), rows, input_precision=S.precision)
