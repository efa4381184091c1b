"""Two ways through the band, for the kernels that walk along a tile of queries.

Narrow windows (`S.whole`): the slab has one place for each row of the tables. The products of all
rows are made once, before the first tile, and read by row; what is kept of scores is kept by row
too, strictly inside the window, where each query meets a row once. Inside the loops nothing waits.

Wide ones: the slab is a ring of offsets (`shear.py`). Each tile needs `n` offsets more than the one
before, and their products are made while it is at work; scores that are kept are complete, and
taken back, when the tile has passed. A barrier for each tile.

Either way `u` numbers the places of the slab, and place 0 belongs to the tables' row `first_row`.
"""

import triton
import triton.language as tl

from .scores import row_at
from .shear import read_by_key, read_by_offset, write_by_key, write_products


@triton.jit
def first_row(call, i0, left, S: tl.constexpr):
    """The row of the tables at place 0, for the queries from `i0` and a band from key `left`."""
    if S.whole:
        return 0
    else:
        return left - (call.start + i0 + S.m - 1) - call.first


@triton.jit
def begin_products(
    call, slab, x, table, h, row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, S: tl.constexpr
):
    """Write the products of `x (m, BLOCK)` that the band's first tile needs, or all of them."""
    if S.whole:
        for u in range(0, call.rows, S.n):
            write_products(slab, S.ring, x, table, h, u, call.rows, u, S.n, WIDTH, BLOCK, S)
    else:
        for part in tl.static_range(S.m // S.n + 1):
            u = part * S.n
            write_products(slab, S.ring, x, table, h, row + u, call.rows, u, S.n, WIDTH, BLOCK, S)


@triton.jit
def next_products(
    call, slab, x, table, h, row, u, WIDTH: tl.constexpr, BLOCK: tl.constexpr, S: tl.constexpr
):
    """Write what the tile after that at `u` needs besides; only on a ring."""
    u += S.m + S.n
    write_products(slab, S.ring, x, table, h, row + u, call.rows, u, S.n, WIDTH, BLOCK, S)


@triton.jit
def read_products(call, slab, i, j, u, S: tl.constexpr):
    """The products of the tile of queries `i (m, 1)` and keys `j (1, n)`, which is at `u`."""
    if S.whole:
        a = tl.arange(0, S.m)
        return tl.load(slab + (a[:, None] * S.ring + row_at(call, i, j)))
    else:
        return read_by_key(slab, S.ring, u, S.m, S.n)


@triton.jit
def begin_kept(call, slab, value, S: tl.constexpr):
    """Fill the places of pairs that may never come; a ring has none that is read."""
    if S.whole:
        a = tl.arange(0, S.m)
        c = tl.arange(0, S.n)
        for u in range(0, call.rows, S.n):
            at = a[:, None] * S.ring + (u + c)[None, :]
            tl.store(slab + at, tl.zeros_like(at).to(tl.float32) + value)


@triton.jit
def keep(call, slab, i, j, u, tile, S: tl.constexpr):
    """Keep `tile (m, n)` of queries `i` and keys `j` by place."""
    if S.whole:
        a = tl.arange(0, S.m)
        row = row_at(call, i, j)
        inside = (row > 0) & (row < call.rows - 1)
        tl.store(slab + (a[:, None] * S.ring + row), tile, mask=inside)
    else:
        write_by_key(slab, S.ring, u, tile, S.m, S.n)


@triton.jit
def take(call, slab, row, u, left, right, other, S: tl.constexpr):
    """What is kept at places `u..u + n - 1`, `(m, n)`; `other` where there is nothing.

    Nor is there at the tables' two end rows, which a query may meet many times: what belongs to
    them is summed by `row_sums_beyond`. Place 0 is that of row `row`, and the band holds the keys
    `left..right - 1`.
    """
    a = tl.arange(0, S.m)
    c = tl.arange(0, S.n)
    at = row + u + c
    inside = ((at > 0) & (at < call.rows - 1))[None, :]
    if S.whole:
        inside = inside & (a >= 0)[:, None]
    else:
        key = left + u + c[None, :] - (S.m - 1 - a)[:, None]
        inside = inside & (key >= left) & (key < right)
    return read_by_offset(slab, S.ring, u, inside, other, S.m, S.n)
