"""From products to scores, in logits: bias, a grid's terms and masks."""

import triton
import triton.language as tl

from .tiles import keys_seen, load_mask

# The regions of tiles, by what every offset in them is.
LEFT = tl.constexpr(0)  # at or before the tables' first row
BAND = tl.constexpr(1)  # any
RIGHT = tl.constexpr(2)  # at or after their last row


@triton.jit
def row_at(call, i, j):
    """The row of the tables that each pair meets."""
    return tl.minimum(tl.maximum(j - (call.start + i) - call.first, 0), call.rows - 1)


@triton.jit
def tile_of(tile, tiles, call):
    """`(b, h, number)` of a tile among `tiles` to a head, the last ones first."""
    number = tiles - 1 - tile % tiles
    head = tile // tiles
    return head // call.given.heads, head % call.given.heads, number


@triton.jit
def regions(call, b, i0, S: tl.constexpr):
    """Where the three regions of the keys begin and end for the queries `i0..i0 + m - 1`.

    Each is a number of whole tiles: `[begin, left)`, `[left, right)`, `[right, end)`.
    """
    position = call.start + i0
    begin = 0
    end = call.key_length
    if S.causal:
        end = tl.minimum(end, tl.maximum(position + S.m, 0))
    if S.documents:
        reach = call.given.query_reach + (b * tl.cdiv(call.length, S.m) + i0 // S.m) * 2
        begin = tl.load(reach)
        end = tl.minimum(end, tl.load(reach + 1))
    end = tl.maximum(tl.cdiv(end, S.n) * S.n, begin)
    if S.keys or S.queries or S.bias or S.values or S.causal:
        left = tl.maximum(position + call.first + 1, 0) // S.n * S.n
        left = tl.minimum(tl.maximum(left, begin), end)
        last = position + S.m - 1 + call.first + call.rows - 1
        right = tl.cdiv(tl.maximum(last, 0), S.n) * S.n
        right = tl.minimum(tl.maximum(right, left), end)
    else:
        left = end
        right = end
    return begin, left, right, end


@triton.jit
def complete_scores(
    call, b, h, i, j, products, REGION: tl.constexpr, EDGE: tl.constexpr, S: tl.constexpr
):
    """`scale * products + bias + ...`; -inf where a pair takes no part.

    Args:
        call: the call.
        b: number of the sequence.
        h: number of the query head.
        i: numbers of the queries, `(m, 1)`.
        j: numbers of the keys, `(1, n)` or `(m, n)`.
        products: `(m, n)`, not yet scaled.
        REGION: of the tile.
        EDGE: whether some `j` may be beyond the last key.
        S: the settings.
    """
    x = products * call.given.scale
    if S.bias:
        bias = call.given.bias_table.data + tl.cast(h, tl.int64) * call.given.bias_table.h
        if REGION == LEFT:
            x += tl.load(bias).to(tl.float32)
        elif REGION == RIGHT:
            x += tl.load(bias + call.rows - 1).to(tl.float32)
        else:
            x += tl.load(bias + row_at(call, i, j)).to(tl.float32)
    if S.axes:
        x += _grid_terms(call, b, h, i, j, S)
    if S.mask == "additive":
        x += load_mask(call, b, h, i, j, S).to(tl.float32)
    HIDE: tl.constexpr = S.causal and (REGION != LEFT or S.causal_left)
    if S.mask == "boolean":
        x = tl.where(load_mask(call, b, h, i, j, S) != 0, x, float("-inf"))
    if HIDE or EDGE or S.documents:
        x = tl.where(keys_seen(call, b, h, i, j, HIDE, EDGE, S), x, float("-inf"))
    return x


@triton.jit
def row_sums_beyond(call, i, j, x, REGION: tl.constexpr):
    """The row sums of `x (m, n)` over the pairs that meet the tables' first row, and their last."""
    if REGION == LEFT:
        before = tl.sum(x, 1)
        return before, tl.zeros_like(before)
    elif REGION == BAND:
        row = row_at(call, i[:, None], j[None, :])
        before = tl.sum(tl.where(row == 0, x, 0.0), 1)
        return before, tl.sum(tl.where(row == call.rows - 1, x, 0.0), 1)
    else:
        after = tl.sum(x, 1)
        return tl.zeros_like(after), after


@triton.jit
def by_place(x, places, b, h, rows, count, other, other_count, AXES: tl.constexpr):
    """Sum over the axes of `x[b, h, row, place of other]`; tokens without a place add nothing.

    Args:
        x: `(b, h, count, columns)`.
        places: `(axes, other_count)`.
        b: number of the sequence.
        h: number of the query head.
        rows: numbers of the tokens that `x` has rows for, broadcastable with `other`.
        count: how many there are.
        other: numbers of the tokens on the other side.
        other_count: how many there are.
        AXES: of the grid.
    """
    base = x.data + tl.cast(b, tl.int64) * x.b + tl.cast(h, tl.int64) * x.h
    total = tl.zeros_like(rows + other).to(tl.float32)
    known = (other >= 0) & (other < other_count)
    for axis in tl.static_range(AXES):
        place = tl.load(places + axis * other_count + other, mask=known, other=-1)
        inside = (place >= 0) & (rows >= 0) & (rows < count)
        total += tl.load(base + tl.cast(rows, tl.int64) * x.n + place, mask=inside, other=0.0)
    return total


@triton.jit
def _grid_terms(call, b, h, i, j, S: tl.constexpr):
    """What a grid adds to the scores, in logits."""
    total = tl.zeros_like(i + j).to(tl.float32)
    if S.by_key:
        total += by_place(
            call.given.by_key,
            call.given.key_places,
            b,
            h,
            i,
            call.length,
            j,
            call.key_length,
            S.axes,
        )
    if S.by_query:
        total += by_place(
            call.given.by_query,
            call.given.query_places,
            b,
            h,
            j,
            call.key_length,
            i,
            call.length,
            S.axes,
        )
    if S.joint_bias:
        key_known = (j >= 0) & (j < call.key_length)
        query_known = i < call.length
        key_place = tl.load(call.given.key_places + j, mask=key_known, other=-1)
        query_place = tl.load(call.given.query_places + i, mask=query_known, other=-1)
        key_line = tl.load(call.given.key_lines + j, mask=key_known, other=0)
        query_line = tl.load(call.given.query_lines + i, mask=query_known, other=0)
        joint_bias = call.given.joint_bias.data + tl.cast(h, tl.int64) * call.given.joint_bias.h
        inside = (key_place >= 0) & (query_place >= 0)
        total += tl.load(joint_bias + key_line - query_line, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def place_marks(places, tokens, count, axis, BLOCK: tl.constexpr):
    """`(len(tokens), BLOCK)`: whether a column is the place of a token along `axis`."""
    place = tl.load(places + axis * count + tokens, mask=tokens < count, other=-1)
    return place[:, None] == tl.arange(0, BLOCK)[None, :]


@triton.jit
def all_place_marks(places, tokens, count, AXES: tl.constexpr, BLOCK: tl.constexpr):
    """`(len(tokens), BLOCK)`: 1 at the places of each token along all axes, else 0."""
    marks = place_marks(places, tokens, count, 0, BLOCK)
    for axis in tl.static_range(1, AXES):
        marks = marks | place_marks(places, tokens, count, axis, BLOCK)
    return marks
