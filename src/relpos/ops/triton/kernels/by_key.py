"""Backward, one tile of keys at a time: gradients of `k`, `v` and of a grid's terms by query.

    dk_j = scale * (sum_i dS_ij q_i + sum_i dS_ij Q[j-i])        dv_j = sum_i P_ij dO_i

The query heads that share a key head are summed in a fixed order by the one program that owns the
tile.
"""

import triton
import triton.language as tl

from ..call import SizedCall, Sizes
from .by_query import load_row_numbers, load_softmax, weights_of
from .products import queries_products, row_products
from .scores import BAND, LEFT, all_place_marks, by_place, complete_scores
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
def d_scores_of(
    call, b, h, i0, j0, q, k, v, p, d_o, softmax, all_rows, delta, d_places, slab,
    REGION: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """The weights that dropout leaves and `dS` of one tile, `(m, n)` each."""
    i = i0 + tl.arange(0, S.m)
    j = j0 + tl.arange(0, S.n)
    value_slab = slab + (S.m * S.ring if S.keys else 0)
    crossed = value_slab + (S.m * S.ring if S.values else 0)
    x = tl.dot(q, tl.trans(k), input_precision=S.precision)
    if S.keys:
        x += row_products(
            call, h, p, call.given.keys_table, i0, j0, slab, REGION, S.dp, S.block_p, S
        )
    if S.queries:
        x += queries_products(call, h, k, i0, j0, crossed, REGION, S)
    x = complete_scores(call, b, h, i[:, None], j[None, :], x, REGION, S.ragged, S)
    top, inverse = load_softmax(softmax, b, h, i, call, all_rows)
    weights = weights_of(x, top, inverse)
    d_weights = tl.dot(d_o, tl.trans(v), input_precision=S.precision)
    if S.values:
        d_weights += row_products(
            call, h, d_o, call.given.values_table, i0, j0, value_slab, REGION, S.dv, S.block_v, S
        )
    if S.places:
        d_weights += by_place(
            d_places, call.given.key_places, b, h, i[:, None], call.length, j[None, :],
            call.key_length, S.axes,
        )  # fmt: skip
    left = weights
    if S.dropout:
        kept = weights_kept(call, b, h, i[:, None], j[None, :])
        left = tl.where(kept, weights * call.given.kept, 0.0)
        d_weights = tl.where(kept, d_weights * call.given.kept, 0.0)
    less = load_row_numbers(delta, b, h, i, call, 0.0)
    return left, weights * (d_weights - less[:, None])


@triton.jit(do_not_specialize=Sizes._fields)
def by_key_kernel(
    call, length, key_length, start, window_first, window_rows, all_tiles,
    softmax, d_out, delta, d_places, d_k, d_v, d_by_query, ends,
    S: tl.constexpr, D_BY_QUERY: tl.constexpr, D_QUERIES: tl.constexpr,
):  # fmt: skip
    """Write `d_k`, `d_v`, `d_by_query (b, h, j, s)` and `ends (2, b, h, j)`.

    `ends`: the sums of `dS` over the queries that meet the first row of the table of queries, and
    its last one.
    """
    call = SizedCall(call, length, key_length, start, window_first, window_rows, all_tiles)
    slab = call.given.slabs + tl.cast(tl.program_id(0), tl.int64) * S.slab
    turned = slab + S.m * S.ring * (S.keys + S.values + S.queries)
    tiles = tl.cdiv(call.key_length, S.n)
    groups = call.given.heads // call.given.repeat
    all_rows = tl.cast(call.tiles // tiles * call.given.repeat, tl.int64) * call.length
    for tile in range(tl.program_id(0), call.tiles, tl.num_programs(0)):
        number = tile % tiles
        b = tile // tiles // groups
        g = tile // tiles % groups
        j0 = number * S.n
        j = j0 + tl.arange(0, S.n)
        k = load_keys(call.given.k, call, b, g, j, S.d, S.block_d, S)
        v = load_keys(call.given.v, call, b, g, j, S.dv, S.block_v, S)
        acc_k = zeros(S.n, S.block_d)
        acc_v = zeros(S.n, S.block_v)
        begin, right, left, end = _query_regions(call, b, j0, S)
        for h in range(g * call.given.repeat, (g + 1) * call.given.repeat):
            if D_QUERIES:
                left_scores = zeros_in_row(S.n)
                right_scores = zeros_in_row(S.n)
            if D_BY_QUERY:
                acc_places = zeros(S.n, S.block_query_places)
            for REGION in tl.static_range(3):
                # From the first queries on, the offsets fall: the right region comes first.
                lower = left if REGION == LEFT else (right if REGION == BAND else begin)
                upper = end if REGION == LEFT else (left if REGION == BAND else right)
                if S.queries and REGION != BAND:
                    far = zeros_in_row(S.n)
                for i0 in range(lower, upper, S.m):
                    i = i0 + tl.arange(0, S.m)
                    q = load_rows(call.given.q, b, h, i, call.length, S.d, S.block_d, S)
                    p = q
                    if S.own_p:
                        p = load_rows(call.given.p, b, h, i, call.length, S.dp, S.block_p, S)
                    d_o = load_rows(d_out, b, h, i, call.length, S.dv, S.block_v, S)
                    weights, d_scores = d_scores_of(
                        call, b, h, i0, j0, q, k, v, p, d_o, softmax, all_rows, delta, d_places,
                        slab, REGION, S,
                    )  # fmt: skip
                    turned_weights = tl.trans(weights).to(d_o.dtype)
                    turned_scores = tl.trans(d_scores)
                    acc_v += tl.dot(turned_weights, d_o, input_precision=S.precision)
                    acc_k += tl.dot(turned_scores.to(q.dtype), q, input_precision=S.precision)
                    if S.queries:
                        if REGION == BAND:
                            acc_k += _queries_by_offset(call, h, turned_scores, i0, j0, turned, S)
                        else:
                            far += tl.sum(d_scores, 0)
                    if D_QUERIES:
                        offset = j[None, :] - (call.start + i)[:, None]
                        before, after = _beyond(call, offset, d_scores, REGION)
                        left_scores += before
                        right_scores += after
                    if D_BY_QUERY:
                        marks = all_place_marks(
                            call.given.query_places, i, call.length, S.axes, S.block_query_places
                        )
                        acc_places += tl.dot(
                            turned_scores.to(q.dtype), marks.to(q.dtype),
                            input_precision=S.precision,
                        )  # fmt: skip
                if S.queries and REGION != BAND:
                    end_row = 0 if REGION == LEFT else call.rows - 1
                    row = load_table_row(call.given.queries_table, h, end_row, S.d, S.block_d)
                    acc_k += far[:, None] * row[None, :]
            if D_QUERIES:
                heads = tl.cast(call.tiles // tiles * call.given.repeat, tl.int64) * call.key_length
                head = (tl.cast(b, tl.int64) * call.given.heads + h) * call.key_length
                tl.store(ends + head + j, left_scores, mask=j < call.key_length)
                tl.store(ends + heads + head + j, right_scores, mask=j < call.key_length)
            if D_BY_QUERY:
                store_rows(
                    d_by_query, b, h, j, call.key_length, acc_places,
                    S.query_columns, S.block_query_places, S,
                )  # fmt: skip
        store_rows(d_k, b, g, j, call.key_length, acc_k * call.given.scale, S.d, S.block_d, S)
        store_rows(d_v, b, g, j, call.key_length, acc_v, S.dv, S.block_v, S)


@triton.jit
def _beyond(call, offset, x, REGION: tl.constexpr):
    """The column sums of `x` over the pairs that meet the tables' first row, and their last one."""
    if REGION == LEFT:
        before = tl.sum(x, 0)
        return before, tl.zeros_like(before)
    elif REGION == BAND:
        before = tl.sum(tl.where(offset <= call.first, x, 0.0), 0)
        return before, tl.sum(tl.where(offset >= call.first + call.rows - 1, x, 0.0), 0)
    else:
        after = tl.sum(x, 0)
        return tl.zeros_like(after), after


@triton.jit
def _query_regions(call, b, j0, S: tl.constexpr):
    """Where the regions of the queries begin and end for the keys `j0..j0 + n - 1`.

    `[begin, right)` is the right region, `[right, left)` the band, `[left, end)` the left region.
    """
    begin = 0
    end = tl.cdiv(call.length, S.m) * S.m
    if S.causal:
        begin = tl.maximum(j0 - call.start, 0) // S.m * S.m
    if S.documents:
        reach = call.given.key_reach + (b * tl.cdiv(call.key_length, S.n) + j0 // S.n) * 2
        begin = tl.maximum(begin, tl.load(reach))
        end = tl.minimum(end, tl.load(reach + 1))
    begin = tl.minimum(begin, end)
    if S.keys or S.queries or S.bias or S.values or S.causal:
        last = call.first + call.rows - 1
        right = tl.maximum(j0 - call.start - last + 1, 0) // S.m * S.m
        right = tl.minimum(tl.maximum(right, begin), end)
        left = tl.cdiv(tl.maximum(j0 + S.n - 1 - call.start - call.first, 0), S.m) * S.m
        left = tl.minimum(tl.maximum(left, right), end)
    else:
        right = begin
        left = begin
    return begin, right, left, end


@triton.jit
def _queries_by_offset(call, h, turned_scores, i0, j0, slab, S: tl.constexpr):
    """`sum_i dS_ij Q[j-i]` of one tile: `(n, block_d)`.

    The transposed tile is kept as it is, `slab[c, a]`; its number at offset `u` is that of query
    `a = c + m - 1 - u`.
    """
    a = tl.arange(0, S.m)
    c = tl.arange(0, S.n)
    tl.debug_barrier()  # the slab may still be read
    tl.store(slab + c[:, None] * S.m + a[None, :], turned_scores)
    tl.debug_barrier()
    row = j0 - (call.start + i0 + S.m - 1) - call.first
    total = zeros(S.n, S.block_d)
    for part in tl.static_range(S.m // S.n + 1):
        at = c[:, None] + (S.m - 1 - part * S.n - c)[None, :]
        inside = (at >= 0) & (at < S.m)
        d_scores = tl.load(slab + c[:, None] * S.m + at, mask=inside, other=0.0)
        rows = load_table(
            call.given.queries_table, h, row + part * S.n + c, call.rows, S.d, S.block_d
        )
        total += tl.dot(d_scores.to(rows.dtype), rows, input_precision=S.precision)
    return total
