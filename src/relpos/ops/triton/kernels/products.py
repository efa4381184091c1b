"""Products of one tile with the tables, each on its own: for kernels that carry no ring along.

The slab holds the products of all `m + n` offsets that the tile's pairs have.
"""

import triton
import triton.language as tl

from .scores import BAND, LEFT
from .shear import read_by_key, write_products
from .tiles import load_table_row


@triton.jit
def row_products(
    call,
    h,
    x,
    table,
    i0,
    j0,
    slab,
    REGION: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    S: tl.constexpr,
):
    """`x_i . table[j - i]` for the queries from `i0` and the keys from `j0`, by row: `(m, n)`.

    Or `(m, 1)`, outside the band.
    """
    if REGION == BAND:
        row = j0 - (call.start + i0 + S.m - 1) - call.first
        tl.debug_barrier()  # the slab may still be read
        for part in tl.static_range(S.m // S.n + 1):
            write_products(
                slab, S.ring, x, table, h, row + part * S.n, call.rows, part * S.n,
                S.n, WIDTH, BLOCK, S,
            )  # fmt: skip
        tl.debug_barrier()
        return read_by_key(slab, S.ring, 0, S.m, S.n)
    else:
        rows = load_table_row(table, h, 0 if REGION == LEFT else call.rows - 1, WIDTH, BLOCK)
        return tl.sum(x.to(tl.float32) * rows[None, :], 1)[:, None]


@triton.jit
def queries_products(call, h, k, i0, j0, slab, REGION: tl.constexpr, S: tl.constexpr):
    """`k_j . Q[j - i]` for the queries from `i0` and the keys from `j0`: `(m, n)` or `(1, n)`.

    By key, so that the slab has a row for each: pair (a, c) is at `slab[c, c + m - 1 - a]`.
    """
    a = tl.arange(0, S.m)
    c = tl.arange(0, S.n)
    if REGION == BAND:
        row = j0 - (call.start + i0 + S.m - 1) - call.first
        tl.debug_barrier()  # the slab may still be read
        for part in tl.static_range(S.m // S.n + 1):
            u = part * S.n
            write_products(
                slab, S.ring, k, call.given.queries_table, h, row + u, call.rows, u,
                S.n, S.d, S.block_d, S,
            )  # fmt: skip
        tl.debug_barrier()
        # Neighbouring threads along the queries: a row of the slab lies together in memory.
        at = c[:, None] * S.ring + c[:, None] + (S.m - 1 - a)[None, :]
        return tl.trans(tl.load(slab + at))
    else:
        rows = load_table_row(
            call.given.queries_table, h, 0 if REGION == LEFT else call.rows - 1, S.d, S.block_d
        )
        return tl.sum(k.to(tl.float32) * rows[None, :], 1)[None, :]
