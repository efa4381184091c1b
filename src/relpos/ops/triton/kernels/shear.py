"""The shear inside a kernel: what comes by offset is wanted by key, and the reverse.

Count offsets from that of a tile's first key and last query: then the pair (query a, key c) of the
tile has the offset `c + m - 1 - a`. Products with the tables come by offset, in blocks of w: block
t holds in `[a, s]` what query a has at offset `t w + s`. A piece of w keys needs `m / w + 1` of
them, and the next w keys all but the first of these, and one more.

As key c runs through a row, column `s = (c - 1 - a) mod w` runs through it too: of all blocks, each
element `[a, s]` of one alone is wanted. So the blocks are merged, an element from one or the other,
and then each row is rotated; and the reverse. A row lies within a warp, where `tl.gather` takes
shuffles: nothing goes through memory that other programs see, and nothing waits. With as many
columns as a warp has threads each number is one shuffle away, hence pieces (`SPEC.shear_width`).

Groups of w rows want the same with a delay: rows `e w..e w + w - 1` of a piece what the first w
rows wanted e pieces earlier. `walk_by_key` and `walk_by_offset` carry what they need from piece to
piece as a tuple, which they take and return.
"""

import triton
import triton.language as tl

from .regions import LEFT, RIGHT, end_dot
from .tables import QUERIES, dot_rows, times_rows
from .tiles import zeros


@triton.jit
def first_row(args, i0, j0, SPEC: tl.constexpr):
    """The row of the tables for the tile's first key and last query; may lie beyond them."""
    return j0 - (args.query_start + i0 + SPEC.block_m - 1) - args.table_first


@triton.jit
def rotate(x, column):
    """`x[a, column[a, c] mod n]` of `x (rows, n)`."""
    return tl.gather(x, column & (x.shape[1] - 1), 1)


@triton.jit
def beside(x, y):
    """`x` and `y (m, w)` beside each other: `(m, 2 w)`."""
    both = tl.permute(tl.join(x, y), (0, 2, 1))
    return tl.reshape(both, (x.shape[0], 2 * x.shape[1]))


@triton.jit
def halves(x):
    """The left and the right half of `x (m, n)`: `(m, n / 2)` each."""
    both = tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2))
    return tl.split(tl.permute(both, (0, 2, 1)))


@triton.jit
def walk_by_key(carried, newest):
    """What a piece has by key, `(m, w)`, and what the next one needs.

    Args:
        carried: of the piece before; `(block,)` for the walk's first block.
        newest: `(m, w)`, the next block.
    """
    M: tl.constexpr = newest.shape[0]
    W: tl.constexpr = newest.shape[1]
    a = tl.arange(0, M)[:, None]
    s = tl.arange(0, W)[None, :]
    # For the first rows, and with a delay for the others: the last two blocks, merged.
    latest = tl.where((a & (W - 1)) + s + 1 < W, newest, carried[0])
    merged = latest
    delayed = latest
    to_carry = (newest,)
    for group in tl.static_range(1, M // W):
        merged = tl.where(a < group * W, merged, carried[group])
        to_carry = to_carry + (delayed,)
        # Not merely passed on: the compiler's pipeline takes no longer delays than of one turn.
        delayed = tl.where(a < (group + 1) * W, 0.0, carried[group])
    return rotate(merged, s - 1 - a), to_carry


@triton.jit
def begin_by_key(args, TABLE: tl.constexpr, h, x, row, SPEC: tl.constexpr):
    """What `dots_by_key` needs of the blocks from the table's row `row` on, before the first tile.

    Args:
        args: of the kernel.
        TABLE: that `x` is dotted with.
        h: number of the query head.
        x: `(m, BLOCK)`.
        row: `first_row` of the first tile.
        SPEC: of the kernel.
    """
    M: tl.constexpr = x.shape[0]
    W: tl.constexpr = SPEC.shear_width
    s = tl.arange(0, W)
    block = dot_rows(args, TABLE, h, x, row + s, SPEC)
    carried = (block,)
    for _ in tl.static_range(1, M // W):
        carried = carried + (tl.zeros_like(block),)
    for t in tl.static_range(1, M // W):
        _, carried = walk_by_key(carried, dot_rows(args, TABLE, h, x, row + t * W + s, SPEC))
    return carried


@triton.jit
def dots_by_key(carried, args, TABLE: tl.constexpr, h, x, row, SPEC: tl.constexpr):
    """`x_i . table[j - i]` of a tile, `(m, n)`, and what the next tile needs.

    Args:
        carried: of the tile before, or `begin_by_key`.
        args: of the kernel.
        TABLE: that `x` is dotted with.
        h: number of the query head.
        x: `(m, BLOCK)`.
        row: `first_row` of the tile.
        SPEC: of the kernel.
    """
    W: tl.constexpr = SPEC.shear_width
    row += x.shape[0] + tl.arange(0, W)
    dots, carried = walk_by_key(carried, dot_rows(args, TABLE, h, x, row, SPEC))
    if SPEC.block_n > W:
        second, carried = walk_by_key(carried, dot_rows(args, TABLE, h, x, row + W, SPEC))
        dots = beside(dots, second)
    return dots, carried


@triton.jit
def begin_by_offset(SPEC: tl.constexpr):
    """What `times_rows_by_offset` needs before the first tile."""
    carried = (zeros(SPEC.block_m, SPEC.shear_width),)
    for _ in tl.static_range(1, SPEC.block_m // SPEC.shear_width):
        carried = carried + (zeros(SPEC.block_m, SPEC.shear_width),)
    return carried


@triton.jit
def times_rows_by_offset(carried, acc, x, args, TABLE: tl.constexpr, h, row, SPEC: tl.constexpr):
    """What the next tile needs, and `acc (m, BLOCK)` with what is complete of its sum.

    That is `sum_j x_ij table[j-i]`.

    Args:
        carried: of the tile before, or `begin_by_offset`.
        acc: to add to.
        x: the tile, `(m, n)`.
        args: of the kernel.
        TABLE: whose rows.
        h: number of the query head.
        row: `first_row` of the tile.
        SPEC: of the kernel.
    """
    W: tl.constexpr = SPEC.shear_width
    row += tl.arange(0, W)
    if SPEC.block_n > W:
        first, second = halves(x)
        block, carried = walk_by_offset(carried, first)
        acc += times_rows(args, TABLE, h, block, row, SPEC)
        block, carried = walk_by_offset(carried, second)
        acc += times_rows(args, TABLE, h, block, row + W, SPEC)
    else:
        block, carried = walk_by_offset(carried, x)
        acc += times_rows(args, TABLE, h, block, row, SPEC)
    return carried, acc


@triton.jit
def walk_by_offset(carried, x):
    """A piece's first block, which no later piece adds to, and what the next piece needs.

    Args:
        carried: of the piece before.
        x: the piece by key, `(m, w)`.
    """
    M: tl.constexpr = x.shape[0]
    W: tl.constexpr = x.shape[1]
    a = tl.arange(0, M)[:, None]
    s = tl.arange(0, W)[None, :]
    rotated = rotate(x, a + s + 1)
    is_newer = (a & (W - 1)) + s + 1 < W
    completed = carried[0] + tl.where(is_newer, 0.0, rotated)
    return _delay(carried, tl.where(is_newer, rotated, 0.0), completed)


@triton.jit
def _delay(carried, begun, completed):
    """The last rows of `completed`, with the others as they were before, and what to carry."""
    M: tl.constexpr = completed.shape[0]
    W: tl.constexpr = completed.shape[1]
    a = tl.arange(0, M)[:, None]
    block = completed
    delayed = completed
    to_carry = (begun,)
    for late in tl.static_range(1, M // W):
        block = tl.where(a < M - late * W, carried[late], block)
        to_carry = to_carry + (delayed,)
        delayed = tl.where(a < M - (late + 1) * W, carried[late], 0.0)
    return block, to_carry


@triton.jit
def times_rows_left(carried, acc, args, TABLE: tl.constexpr, h, row, SPEC: tl.constexpr):
    """`acc` with what is still carried after the last tile.

    Args:
        carried: of the last tile.
        acc: `(m, BLOCK)`, to add to.
        args: of the kernel.
        TABLE: whose rows.
        h: number of the query head.
        row: `first_row` of the tile that would be next.
        SPEC: of the kernel.
    """
    W: tl.constexpr = SPEC.shear_width
    row += tl.arange(0, W)
    for t in tl.static_range(SPEC.block_m // W):
        block, carried = _delay(carried, tl.zeros_like(carried[0]), carried[0])
        acc += times_rows(args, TABLE, h, block, row + t * W, SPEC)
    return acc


@triton.jit
def tile_dot_rows(
    args, TABLE: tl.constexpr, h, x, i0, j0, REGION: tl.constexpr, SPEC: tl.constexpr
):
    """`x_i . table[j - i]` of the tile of queries from `i0` and keys from `j0`, by itself.

    With `x (m, BLOCK)`: `(m, n)`, or `(m, 1)` outside the band.
    """
    if REGION == LEFT or REGION == RIGHT:
        return end_dot(args, TABLE, h, x, REGION, SPEC)[:, None]
    else:
        row = first_row(args, i0, j0, SPEC)
        carried = begin_by_key(args, TABLE, h, x, row, SPEC)
        dots, _ = dots_by_key(carried, args, TABLE, h, x, row, SPEC)
        return dots


@triton.jit
def tile_dot_queries(args, h, k, i0, j0, REGION: tl.constexpr, SPEC: tl.constexpr):
    """`k_j . Q[j - i]` of the same tile, with `k (n, d)`: `(m, n)`, or `(1, n)` outside the band.

    A row for each key, whose query a has the offset `c + m - 1 - a`; in two blocks of m, which are
    all if there are not more keys than queries.
    """
    if REGION == LEFT or REGION == RIGHT:
        return end_dot(args, QUERIES, h, k, REGION, SPEC)[None, :]
    else:
        M: tl.constexpr = SPEC.block_m
        c = tl.arange(0, k.shape[0])[:, None]
        s = tl.arange(0, M)
        row = first_row(args, i0, j0, SPEC)
        older = dot_rows(args, QUERIES, h, k, row + s, SPEC)
        newer = dot_rows(args, QUERIES, h, k, row + M + s, SPEC)
        merged = tl.where(s[None, :] < c, newer, older)
        return tl.trans(rotate(merged, c + M - 1 - s[None, :]))


@triton.jit
def tile_times_queries(args, h, x_transposed, i0, j0, SPEC: tl.constexpr):
    """`sum_i x_ij Q[j-i]` of the same tile, with `x_transposed (n, m)`: `(n, d)`."""
    M: tl.constexpr = SPEC.block_m
    c = tl.arange(0, x_transposed.shape[0])[:, None]
    s = tl.arange(0, M)
    by_offset = rotate(x_transposed, c + M - 1 - s[None, :])
    is_newer = s[None, :] < c
    row = first_row(args, i0, j0, SPEC)
    older, newer = tl.where(is_newer, 0.0, by_offset), tl.where(is_newer, by_offset, 0.0)
    total = times_rows(args, QUERIES, h, older, row + s, SPEC)
    return total + times_rows(args, QUERIES, h, newer, row + M + s, SPEC)


@triton.jit
def tile_by_offset(blocks, SPEC: tl.constexpr):
    """A tile `(m, n)` whose columns are offsets, `[a, r]` for key `a + r`, from one by key.

    Args:
        blocks: `(m, w)` each, of the keys from that of query 0 and offset 0 on: `(m + n) / w`.
        SPEC: of the kernel.
    """
    first = _piece_by_offset(blocks, 0)
    if SPEC.block_n > SPEC.shear_width:
        return beside(first, _piece_by_offset(blocks, 1))
    else:
        return first


@triton.jit
def _piece_by_offset(blocks, NUMBER: tl.constexpr):
    M: tl.constexpr = blocks[0].shape[0]
    W: tl.constexpr = blocks[0].shape[1]
    a = tl.arange(0, M)[:, None]
    s = tl.arange(0, W)[None, :]
    merged = blocks[NUMBER]
    for t in tl.static_range(1, M // W + 1):
        merged = tl.where(a - s > (t - 1) * W, blocks[NUMBER + t], merged)
    return rotate(merged, a + s)
