"""Backward, some rows of the tables at a time: their gradients, without atomics.

    dK_r = scale * sum dS_ij p_i    dB_r = sum dS_ij           over all pairs with j - i -> r
    dQ_r = scale * sum dS_ij k_j    dV_r = sum P_ij dO_i

A program owns rows strictly between the first and the last: there each query meets exactly one key
at an offset. Its tile is `(m queries, n offsets)`, in which the tables lie straight and the keys
are sheared; it walks over the tiles of queries, and over the heads and sequences that share the
tables. The work is dealt out to `parts` programs, whose sums are added afterwards in a fixed order.
The two end rows, which many keys meet, come from `ends` (`by_query.py`, `by_key.py`).
"""

import triton
import triton.language as tl

from ..call import SizedCall, Sizes
from .by_query import load_row_numbers, load_softmax, weights_of
from .scores import BAND, by_place, complete_scores
from .tiles import load_keys, load_rows, load_table, weights_kept, zeros, zeros_in_row


@triton.jit(do_not_specialize=(*Sizes._fields, "batch", "parts", "entries"))
def by_offset_kernel(
    call, length, key_length, start, window_first, window_rows, all_tiles,
    softmax, d_out, delta, d_places, chunks, d_keys, d_queries, d_bias, d_values,
    batch, table_heads, parts, entries,
    S: tl.constexpr, D_KEYS: tl.constexpr, D_QUERIES: tl.constexpr, D_BIAS: tl.constexpr,
    D_VALUES: tl.constexpr,
):  # fmt: skip
    """Write sums `(parts, table_heads, entries, width)` of each table that learns, in float32.

    Args:
        call: the call.
        length: this and what follows, as in `call.Sizes`.
        key_length: see `length`.
        start: see `length`.
        window_first: see `length`.
        window_rows: see `length`.
        all_tiles: see `length`.
        softmax: `(2, b, h, i)`.
        d_out: `(b, h, i, dv)`.
        delta: `(b, h, i)`.
        d_places: `(b, h, i, s)` or None.
        chunks: `(.., 3)` int32: the offset in tokens of a chunk's first entry, the entry's number,
            and how many of the `n` there are.
        d_keys: or None.
        d_queries: or None.
        d_bias: or None; that of the joint bias on a grid.
        d_values: or None.
        batch: sequences.
        table_heads: 1 where heads share the tables, else all.
        parts: programs for each chunk and head.
        entries: of the tables.
        S: the settings.
        D_KEYS: whether it learns; likewise the others.
        D_QUERIES: see `D_KEYS`.
        D_BIAS: see `D_KEYS`.
        D_VALUES: see `D_KEYS`.
    """
    call = SizedCall(call, length, key_length, start, window_first, window_rows, all_tiles)
    slab = call.given.slabs + tl.cast(tl.program_id(0), tl.int64) * S.slab
    value_slab = slab + S.m * S.ring
    crossed = value_slab + S.m * S.ring
    all_rows = tl.cast(batch * call.given.heads, tl.int64) * call.length
    a = tl.arange(0, S.m)
    r = tl.arange(0, S.n)
    along = a[:, None] * S.ring + a[:, None] + r[None, :]
    for program in range(tl.program_id(0), call.tiles, tl.num_programs(0)):
        part = program % parts
        table_head = program // parts % table_heads
        chunk = chunks + program // parts // table_heads * 3
        offset = tl.load(chunk)
        entry = tl.load(chunk + 1)
        count = tl.load(chunk + 2)

        if D_KEYS:
            acc_keys = zeros(S.n, S.block_p)
        if D_QUERIES:
            acc_queries = zeros(S.n, S.block_d)
        if D_BIAS:
            acc_bias = zeros_in_row(S.n)
        if D_VALUES:
            acc_values = zeros(S.n, S.block_v)

        # The tiles of queries that meet a key at one of these offsets.
        first = tl.maximum(-call.start - offset - (S.n - 1), 0) // S.m
        last = tl.minimum(call.key_length - call.start - offset, call.length)
        tiles = tl.maximum(tl.cdiv(tl.maximum(last, 0), S.m) - first, 0)
        if S.causal and not S.axes:
            tiles = tl.where(offset > 0, 0, tiles)
        heads = call.given.heads // table_heads
        for item in range(part, batch * heads * tiles, parts):
            i0 = (first + item % tiles) * S.m
            b = item // tiles // heads
            h = table_head + item // tiles % heads
            g = h // call.given.repeat
            i = i0 + a
            q = load_rows(call.given.q, b, h, i, call.length, S.d, S.block_d, S)
            p = q
            if S.own_p:
                p = load_rows(call.given.p, b, h, i, call.length, S.dp, S.block_p, S)
            d_o = load_rows(d_out, b, h, i, call.length, S.dv, S.block_v, S)
            key0 = call.start + i0 + offset
            if S.queries:
                query_rows = load_table(
                    call.given.queries_table, h, entry + r, call.rows, S.d, S.block_d
                )
            tl.debug_barrier()  # the slab may still be read
            for some in tl.static_range(S.m // S.n + 1):
                u = some * S.n + r
                k = load_keys(call.given.k, call, b, g, key0 + u, S.d, S.block_d, S)
                v = load_keys(call.given.v, call, b, g, key0 + u, S.dv, S.block_v, S)
                content = tl.dot(q, tl.trans(k), input_precision=S.precision)
                tl.store(slab + a[:, None] * S.ring + u[None, :], content)
                d_content = tl.dot(d_o, tl.trans(v), input_precision=S.precision)
                tl.store(value_slab + a[:, None] * S.ring + u[None, :], d_content)
                if S.queries:
                    met = tl.dot(query_rows, tl.trans(k), input_precision=S.precision)
                    tl.store(crossed + r[:, None] * S.ring + u[None, :], met)
            tl.debug_barrier()
            x = tl.load(slab + along)
            d_weights = tl.load(value_slab + along)
            if S.keys:
                rows = load_table(call.given.keys_table, h, entry + r, call.rows, S.dp, S.block_p)
                x += tl.dot(p, tl.trans(rows), input_precision=S.precision)
            if S.queries:
                x += tl.trans(tl.load(crossed + r[:, None] * S.ring + r[:, None] + a[None, :]))
            if S.values:
                rows = load_table(call.given.values_table, h, entry + r, call.rows, S.dv, S.block_v)
                d_weights += tl.dot(d_o, tl.trans(rows), input_precision=S.precision)

            j = key0 + a[:, None] + r[None, :]
            x = complete_scores(call, b, h, i[:, None], j, x, BAND, True, S)
            inside = (r < count)[None, :] & (i < call.length)[:, None]
            if S.axes:
                inside = inside & _on_entry(call, i[:, None], j, entry + r[None, :])
            x = tl.where(inside, x, float("-inf"))
            top, inverse = load_softmax(softmax, b, h, i, call, all_rows)
            weights = weights_of(x, top, inverse)
            if S.places:
                d_weights += by_place(
                    d_places, call.given.key_places, b, h, i[:, None], call.length, j,
                    call.key_length, S.axes,
                )  # fmt: skip
            left = weights
            if S.dropout:
                kept = weights_kept(call, b, h, i[:, None], j)
                left = tl.where(kept, weights * call.given.kept, 0.0)
                d_weights = tl.where(kept, d_weights * call.given.kept, 0.0)
            less = load_row_numbers(delta, b, h, i, call, 0.0)
            d_scores = weights * (d_weights - less[:, None])

            if D_KEYS:
                acc_keys += tl.dot(tl.trans(d_scores).to(p.dtype), p, input_precision=S.precision)
            if D_BIAS:
                acc_bias += tl.sum(d_scores, 0)
            if D_VALUES:
                acc_values += tl.dot(tl.trans(left).to(d_o.dtype), d_o, input_precision=S.precision)
            if D_QUERIES:
                tl.debug_barrier()
                tl.store(crossed + r[:, None] * S.m + a[None, :], tl.trans(d_scores))
                tl.debug_barrier()
                for some in tl.static_range(S.m // S.n + 1):
                    u = some * S.n + r
                    at = u[None, :] - r[:, None]
                    within = (at >= 0) & (at < S.m)
                    by_key = tl.load(crossed + r[:, None] * S.m + at, mask=within, other=0.0)
                    k = load_keys(call.given.k, call, b, g, key0 + u, S.d, S.block_d, S)
                    acc_queries += tl.dot(by_key.to(k.dtype), k, input_precision=S.precision)

        row = tl.cast(part * table_heads + table_head, tl.int64) * entries + entry + r
        known = r < count
        if D_KEYS:
            _store_sums(d_keys, row, known, acc_keys, S.dp, S.block_p)
        if D_QUERIES:
            _store_sums(d_queries, row, known, acc_queries, S.d, S.block_d)
        if D_BIAS:
            tl.store(d_bias + row, acc_bias, mask=known)
        if D_VALUES:
            _store_sums(d_values, row, known, acc_values, S.dv, S.block_v)


@triton.jit
def _on_entry(call, i, j, entry):
    """Whether a pair of tokens has places on the grid and meets `entry` of the joint bias."""
    known = (j >= 0) & (j < call.key_length)
    key_place = tl.load(call.given.key_places + j, mask=known, other=-1)
    query_place = tl.load(call.given.query_places + i, mask=i < call.length, other=-1)
    key_line = tl.load(call.given.key_lines + j, mask=known, other=0)
    query_line = tl.load(call.given.query_lines + i, mask=i < call.length, other=0)
    return (key_place >= 0) & (query_place >= 0) & (key_line - query_line == entry)


@triton.jit
def _store_sums(x, row, known, sums, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    tl.store(
        x + row[:, None] * WIDTH + columns[None, :],
        sums,
        mask=known[:, None] & (columns < WIDTH)[None, :],
    )


@triton.jit(do_not_specialize=("batch", "count", "parts"))
def ends_kernel(
    numbers, x, sums, batch, heads, repeat, count, parts, table_heads,
    M: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """`sums (parts, table_heads, 2, WIDTH)`: `sum_n numbers[side, b, h, n] x[b, h // repeat, n]`.

    Args:
        numbers: `(2, b, h, count)`.
        x: `(b, h // repeat, count, WIDTH)`.
        sums: float32.
        batch: sequences.
        heads: of `numbers`.
        repeat: heads of `numbers` to one of `x`.
        count: tokens.
        parts: programs for each head.
        table_heads: 1 where heads share the tables, else all.
        M: tokens in a tile.
        WIDTH: of `x`.
        BLOCK: the power of two above it.
        S: the settings.
    """
    part = tl.program_id(0) % parts
    table_head = tl.program_id(0) // parts
    before = tl.zeros((BLOCK,), tl.float32)
    after = tl.zeros((BLOCK,), tl.float32)
    tiles = tl.cdiv(count, M)
    summed = heads // table_heads
    for item in range(part, batch * summed * tiles, parts):
        n = item % tiles * M + tl.arange(0, M)
        b = item // tiles // summed
        h = table_head + item // tiles % summed
        at = numbers + (tl.cast(b, tl.int64) * heads + h) * count + n
        side = tl.cast(batch * heads, tl.int64) * count
        one = tl.load(at, mask=n < count, other=0.0)
        other = tl.load(at + side, mask=n < count, other=0.0)
        n = tl.where((one == 0) & (other == 0), -1, n)  # not read: it may be anything
        rows = load_rows(x, b, h // repeat, n, count, WIDTH, BLOCK, S).to(tl.float32)
        before += tl.sum(rows * one[:, None], 0)
        after += tl.sum(rows * other[:, None], 0)
    columns = tl.arange(0, BLOCK)
    base = sums + tl.cast(part * table_heads + table_head, tl.int64) * 2 * WIDTH
    tl.store(base + columns, before, mask=columns < WIDTH)
    tl.store(base + WIDTH + columns, after, mask=columns < WIDTH)
