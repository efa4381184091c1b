"""Walking along the keys from a tile of queries: the tables' products in LEFT, BAND and RIGHT.

For the forward kernel and for dq. In the band what belongs to the tables goes through the shear
(`shear.py`), which carries blocks from one tile to the next; outside it, it is one number for each
query. Each walk takes what it carried and returns what the next tile needs:

    vectors that are dotted with a table's rows       begin_dots, walk_dots
    weights that are multiplied with its rows         begin_sums, walk_sums, end_sums
"""

import triton
import triton.language as tl

from .regions import BAND, end_dot, end_table_row
from .shear import (
    begin_by_key,
    begin_by_offset,
    dots_by_key,
    first_row,
    times_rows_by_offset,
    times_rows_left,
)
from .tables import load_row
from .tiles import zeros_1d


@triton.jit
def begin_dots(args, TABLE: tl.constexpr, h, x, i0, j0, REGION: tl.constexpr, SPEC: tl.constexpr):
    """What `walk_dots` takes at a region's first tile, with `x (m, BLOCK)` of the queries."""
    if REGION == BAND:
        row = first_row(args, i0, j0, SPEC)
        return begin_by_key(args, TABLE, h, x, row, SPEC)
    else:
        return end_dot(args, TABLE, h, x, REGION, SPEC)


@triton.jit
def walk_dots(
    carried, args, TABLE: tl.constexpr, h, x, i0, j0, REGION: tl.constexpr, SPEC: tl.constexpr
):
    """`x_i . table[j - i]` of a tile, `(m, n)` or `(m, 1)`, and what the next tile takes."""
    if REGION == BAND:
        row = first_row(args, i0, j0, SPEC)
        return dots_by_key(carried, args, TABLE, h, x, row, SPEC)
    else:
        return carried[:, None], carried


@triton.jit
def begin_sums(REGION: tl.constexpr, SPEC: tl.constexpr):
    """What `walk_sums` takes at a region's first tile."""
    if REGION == BAND:
        return begin_by_offset(SPEC)
    else:
        return zeros_1d(SPEC.block_m)


@triton.jit
def rescale_sums(carried, factor, REGION: tl.constexpr):
    """The same, with each query's numbers multiplied by `factor (m,)`."""
    if REGION == BAND:
        scaled = ()
        for part in tl.static_range(len(carried)):
            scaled = scaled + (carried[part] * factor[:, None],)
        return scaled
    else:
        return carried * factor


@triton.jit
def walk_sums(
    carried, acc, x, args, TABLE: tl.constexpr, h, i0, j0, REGION: tl.constexpr,
    SPEC: tl.constexpr,
):  # fmt: skip
    """What the next tile takes, and `acc (m, BLOCK)` with what is known of `sum_j x_ij table[j-i]`.

    Args:
        carried: of the tile before, or `begin_sums`.
        acc: to add to.
        x: of the tile, `(m, n)`.
        args: of the kernel.
        TABLE: whose rows are summed.
        h: number of the query head.
        i0: number of the first query.
        j0: number of the first key.
        REGION: of the tile.
        SPEC: of the kernel.
    """
    if REGION == BAND:
        row = first_row(args, i0, j0, SPEC)
        return times_rows_by_offset(carried, acc, x, args, TABLE, h, row, SPEC)
    else:
        return carried + tl.sum(x, 1), acc


@triton.jit
def end_sums(
    carried, acc, args, TABLE: tl.constexpr, h, i0, j0, REGION: tl.constexpr, SPEC: tl.constexpr
):
    """`acc (m, BLOCK)` with the rest of a region, after which the keys from `j0` on follow."""
    if REGION == BAND:
        row = first_row(args, i0, j0, SPEC)
        return times_rows_left(carried, acc, args, TABLE, h, row, SPEC)
    else:
        end_row = load_row(args, TABLE, h, end_table_row(args, REGION), SPEC)
        return acc + carried[:, None] * end_row[None, :]
