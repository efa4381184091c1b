"""The shear inside a kernel: what comes by offset is wanted by key, and the reverse.

Count offsets from that of a tile's first key and last query: then the pair (query a, key c) of the
tile has the offset `c + m - 1 - a`. Products with the tables come by offset, in blocks of n: block
t holds in `[a, s]` what query a has at offset `t n + s`. A tile needs `m / n + 1` of them, and each
of its rows two: an older one, and the newer one after it.

Of these two beside each other, row a is wanted from one column on, which moves by one from row to
row: Huang's skew. A program stores them in its shared memory once, and loads them from where they
are wanted, into the layout of its products (`shear`).
"""

import triton
import triton.language as tl

from .regions import LEFT, RIGHT, end_dot
from .tables import QUERIES, dot_rows, times_rows


@triton.jit
def first_row(args, i0, j0, SPEC: tl.constexpr):
    """The row of the tables for the tile's first key and last query; may lie beyond them."""
    return j0 - (args.query_start + i0 + SPEC.block_m - 1) - args.table_first


@triton.jit
def shear(older, newer, first, STEP: tl.constexpr = 1, TRANSPOSED: tl.constexpr = False):
    """`both[a, first[a] + STEP c]` of `older, newer (m, n)` beside each other: `(m, n)`.

    With `TRANSPOSED` `(n, m)`.

    Args:
        older: the first n columns.
        newer: the last n columns.
        first: `(m,)`; all columns that are read are to be in `both`.
        STEP: 1 or -1.
        TRANSPOSED: whether a row of the result is a column.
    """
    M: tl.constexpr = older.shape[0]
    N: tl.constexpr = older.shape[1]
    # In shared memory lie eights of columns, of each the even ones of all rows, then the odd ones:
    # of what a warp stores at once in the layout of products, or loads, no two lie in one bank;
    # where the result is transposed, two do.
    both = tl.reshape(tl.join(older, newer), (M, N // 8, 4, 2, 2))
    both = tl.reshape(tl.permute(both, (4, 1, 3, 0, 2)), (2 * M * N,))
    column = first[:, None] + tl.arange(0, 8)[None, :] * STEP
    at = (column >> 3) * 2 + (column & 1)
    at = (at * M + tl.arange(0, M)[:, None]) * 4 + (column >> 1 & 3)
    # By constants, which are part of an instruction, from one eight to the next.
    eights = tl.arange(0, N // 8)
    at = at[:, None, :] + eights[None, :, None] * (8 * M * STEP)
    at = tl.reshape(at, (M, N))
    if TRANSPOSED:  # in the layout of what it is added to
        return tl.trans(take(both, at))
    else:
        return take(both, at + int_zeros_like(older))


@triton.jit
def shear_transposed(x, first, STEP: tl.constexpr):
    """`both[first[c] + STEP s, c]` of `x (m, n)` and, below it, `x` again: `(n, m)`.

    Args:
        x: the first m rows, and the last m.
        first: `(n,)`; all rows that are read are to be in `both`.
        STEP: 1 or -1.
    """
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1]
    both = tl.reshape(tl.join(x, x), (M, N // 8, 4, 2, 2))
    both = tl.reshape(tl.permute(both, (1, 3, 4, 0, 2)), (2 * M * N,))
    c = tl.arange(0, N)
    at = (((c >> 3) * 2 + (c & 1)) * (2 * M) + first) * 4 + (c >> 1 & 3)
    at = at[:, None] + tl.arange(0, M)[None, :] * (4 * STEP)
    if M == N:  # else no tensor of its shape is in the layout of products
        at += int_zeros_like(x)
    return take(both, at)


@triton.jit
def int_zeros_like(x):
    """Zeros of the shape of `x` in int32, and in its layout, which what they are added to has too.

    They are `(bits & 1) & 2`, so that Triton, which finds layouts, does not know that they are 0;
    what comes after it in the compiler does.
    """
    return x.to(tl.int32, bitcast=True) & 1 & 2


@triton.jit
def take(numbers, at):
    """`numbers[at]`, in the layout of `at`.

    A gather from a single row goes through shared memory; one from many, as shuffles, between
    changes of layout.
    """
    flat = tl.gather(numbers, tl.reshape(at, (at.numel,)), 0)
    return tl.reshape(flat, at.shape)


@triton.jit
def by_key(blocks):
    """A tile by key, from all its blocks: `(m, n)`."""
    M: tl.constexpr = blocks[0].shape[0]
    N: tl.constexpr = blocks[0].shape[1]
    a = tl.arange(0, M)
    older, newer = blocks[0], blocks[1]
    for t in tl.static_range(1, M // N):
        is_earlier = (a < M - t * N)[:, None]
        older = tl.where(is_earlier, blocks[t], older)
        newer = tl.where(is_earlier, blocks[t + 1], newer)
    return shear(older, newer, ~a & (N - 1))


@triton.jit
def by_offset(blocks):
    """A tile whose columns are offsets, `[a, r]` for key `a + r`, from blocks of keys: `(m, n)`.

    Args:
        blocks: `(m, n)` each, from the key of query 0 and offset 0 on: `m / n + 1`.
    """
    M: tl.constexpr = blocks[0].shape[0]
    N: tl.constexpr = blocks[0].shape[1]
    a = tl.arange(0, M)
    older, newer = blocks[0], blocks[1]
    for t in tl.static_range(1, M // N):
        is_later = (a >= t * N)[:, None]
        older = tl.where(is_later, blocks[t], older)
        newer = tl.where(is_later, blocks[t + 1], newer)
    return shear(older, newer, a & (N - 1))


@triton.jit
def parts_by_offset(x):
    """What each row of a tile `x (m, n)` by key has in its older block and in its newer one.

    `(m, n)` each; where the one is not 0, the other is.
    """
    N: tl.constexpr = x.shape[1]
    first = (tl.arange(0, x.shape[0]) & (N - 1)) + 1
    x = shear(x, x, first)
    is_newer = first[:, None] + tl.arange(0, N)[None, :] < N
    return tl.where(is_newer, 0.0, x), tl.where(is_newer, x, 0.0)


@triton.jit
def block_by_offset(older, newer, T: tl.constexpr):
    """Block `T` of a tile, `(m, n)`, from `parts_by_offset`."""
    M: tl.constexpr = older.shape[0]
    N: tl.constexpr = older.shape[1]
    a = tl.arange(0, M)[:, None]
    block = older
    if T > 0:
        block = tl.where(a < M - T * N, older, newer)
    if T == M // N:
        block = newer
    if T < M // N - 1:
        block = tl.where(a < M - (T + 1) * N, 0.0, block)
    if T > 1:
        block = tl.where(a < M - (T - 1) * N, block, 0.0)
    return block


@triton.jit
def store_sums_by_offset(sums, number, x):
    """Write the sums over the queries of a tile `x (m, n)` by key, for each offset of its blocks.

    Args:
        sums: `(tiles, m / n + 1, n)` float32.
        number: of the tile.
        x: in float32.
    """
    M: tl.constexpr = x.shape[0]
    N: tl.constexpr = x.shape[1]
    BLOCKS: tl.constexpr = M // N + 1
    # In shared memory lie eights of columns, of each all rows. A warp reads eight offsets of four
    # rows at once, no two of which lie in one bank, and of its offsets it reads all rows.
    eights = tl.reshape(tl.permute(tl.reshape(x, (M, N // 8, 8)), (1, 0, 2)), (M * N,))
    a = tl.arange(0, M // 4)[:, None, None, None] * 4 + tl.arange(0, 4)[None, None, :, None]
    offset = tl.arange(0, N // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    # Each row twice beside itself, as in `parts_by_offset`.
    column = offset[None, :, None, :] + (a & (N - 1)) + 1
    by_offset = take(eights, (((column & (N - 1)) >> 3) * M + a) * 8 + (column & 7))
    block = (M - 1 - a) // N + (column < N).to(tl.int32)
    at = sums + tl.cast(number, tl.int64) * (BLOCKS * N) + offset
    for t in tl.static_range(BLOCKS):
        of_block = tl.where(block == t, by_offset, 0.0)
        tl.store(at + t * N, tl.sum(tl.sum(of_block, 0), 1))


@triton.jit
def tile_dot_rows(args, TABLE: tl.constexpr, h, x, i0, j0, SPEC: tl.constexpr):
    """`x_i . table[j - i]` of the tile of queries from `i0` and keys from `j0`: `(m, n)`.

    With `x (m, BLOCK)` of the queries. The next tile needs all but one of the blocks again; but
    where products are handed on from turn to turn, ptxas lets none run beside anything else.
    """
    row = first_row(args, i0, j0, SPEC) + tl.arange(0, SPEC.block_n)
    blocks = ()
    for t in tl.static_range(SPEC.block_m // SPEC.block_n + 1):
        blocks = blocks + (dot_rows(args, TABLE, h, x, row + t * SPEC.block_n, SPEC),)
    return by_key(blocks)


@triton.jit
def tile_times_rows(acc, x, args, TABLE: tl.constexpr, h, i0, j0, SPEC: tl.constexpr):
    """`acc + sum_j x_ij table[j-i]` of the same tile `x (m, n)`: `(m, BLOCK)`."""
    row = first_row(args, i0, j0, SPEC) + tl.arange(0, SPEC.block_n)
    older, newer = parts_by_offset(x)
    for t in tl.static_range(SPEC.block_m // SPEC.block_n + 1):
        block = block_by_offset(older, newer, t)
        acc += times_rows(args, TABLE, h, block, row + t * SPEC.block_n, SPEC)
    return acc


@triton.jit
def tile_dot_queries(args, h, k, i0, j0, REGION: tl.constexpr, SPEC: tl.constexpr):
    """`k_j . Q[j - i]` of the same tile, with `k (n, d)`: `(m, n)`, or `(1, n)` outside the band.

    A row for each key, whose query a has the offset `c + m - 1 - a`: in two blocks of m, which are
    all if there are not more keys than queries.
    """
    if REGION == LEFT or REGION == RIGHT:
        return end_dot(args, QUERIES, h, k, REGION, SPEC)[None, :]
    else:
        M: tl.constexpr = SPEC.block_m
        row = first_row(args, i0, j0, SPEC) + tl.arange(0, M)
        older = dot_rows(args, QUERIES, h, k, row, SPEC)
        newer = dot_rows(args, QUERIES, h, k, row + M, SPEC)
        first = tl.arange(0, k.shape[0]) + M - 1
        return shear(older, newer, first, -1, TRANSPOSED=True)


@triton.jit
def tile_times_queries(args, h, x, i0, j0, SPEC: tl.constexpr):
    """`sum_i x_ij Q[j-i]` of the same tile `x (m, n)`: `(n, d)`."""
    M: tl.constexpr = SPEC.block_m
    c = tl.arange(0, SPEC.block_n)
    s = tl.arange(0, M)
    x = shear_transposed(x, c + M - 1, -1)
    is_newer = s[None, :] < c[:, None]
    row = first_row(args, i0, j0, SPEC) + s
    total = times_rows(args, QUERIES, h, tl.where(is_newer, 0.0, x), row, SPEC)
    return total + times_rows(args, QUERIES, h, tl.where(is_newer, x, 0.0), row + M, SPEC)
