"""The shear inside a kernel: a product by offset is written to the program's slab, read by key.

A slab row `a` has `W` numbers (a power of two) and is a ring. With `u` the offset counted from that
of the tile's first key and last query, the pair (query a, key c) of the tile has
`u = c + M - 1 - a`: what is written by `u` is read by key along a diagonal, and the reverse.
Writes become visible to the program's other threads at a barrier, which the caller sets.
"""

import triton
import triton.language as tl

from .tiles import load_table


@triton.jit
def write_products(
    slab,
    W: tl.constexpr,
    x,
    table,
    h,
    row,
    count,
    u,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    S: tl.constexpr,
):
    """`slab[a, u + c] = x_a . table[row + c]` for `c < N`; `x (M, BLOCK)`."""
    a = tl.arange(0, x.shape[0])
    c = tl.arange(0, N)
    rows = load_table(table, h, row + c, count, WIDTH, BLOCK)
    products = tl.dot(x, tl.trans(rows), input_precision=S.precision)
    tl.store(slab + (a[:, None] * W + ((u + c) & (W - 1))[None, :]), products)


@triton.jit
def read_by_key(slab, W: tl.constexpr, u, M: tl.constexpr, N: tl.constexpr):
    """The tile `(M, N)` whose pair (0, 0) has offset `u + M - 1` of what is held by offset."""
    a = tl.arange(0, M)
    c = tl.arange(0, N)
    at = (u + c[None, :] + (M - 1 - a)[:, None]) & (W - 1)
    return tl.load(slab + (a[:, None] * W + at))


@triton.jit
def write_by_key(slab, W: tl.constexpr, u, tile, M: tl.constexpr, N: tl.constexpr):
    """Keep `tile (M, N)` by offset: where `read_by_key` would read it."""
    a = tl.arange(0, M)
    c = tl.arange(0, N)
    at = (u + c[None, :] + (M - 1 - a)[:, None]) & (W - 1)
    tl.store(slab + (a[:, None] * W + at), tile)


@triton.jit
def read_by_offset(slab, W: tl.constexpr, u, inside, other, M: tl.constexpr, N: tl.constexpr):
    """`(M, N)`: the numbers held at offsets `u + c`; `other` where not `inside`."""
    a = tl.arange(0, M)
    c = tl.arange(0, N)
    return tl.load(slab + (a[:, None] * W + ((u + c) & (W - 1))[None, :]), mask=inside, other=other)
