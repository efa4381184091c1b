"""Grids of two axes, of which a tile of keys is one row: logits per axis for a tile, not each pair.

A tile has the `SPEC.axis_width` keys of a row of the grid, in n places. What the last axis adds to
the scores is the same for all rows: a number for each query and place, with which the products
start. What the first axis adds is one number for each query. `x (b, h, i, s)` has both, the first
axis before the last.
Tokens before the grid are in LEFT, as many to a tile as it has places; nothing is added to them.
"""

import triton
import triton.language as tl

from .scores import LOG2_E


@triton.jit
def tokens_before_grid(args, SPEC: tl.constexpr):
    """How many keys there are before the grid's."""
    rows = SPEC.num_key_coordinates - SPEC.axis_width
    return args.seqlen_k - rows * SPEC.axis_width


@triton.jit
def count_key_tiles(args, SPEC: tl.constexpr):
    """How many tiles of keys there are."""
    if SPEC.grid_by_rows:
        before = tl.cdiv(tokens_before_grid(args, SPEC), SPEC.block_n)
        return before + SPEC.num_key_coordinates - SPEC.axis_width
    else:
        return tl.cdiv(args.seqlen_k, SPEC.block_n)


@triton.jit
def first_key(number, args, SPEC: tl.constexpr):
    """The first key of a tile of keys."""
    if SPEC.grid_by_rows:
        before = tokens_before_grid(args, SPEC)
        tiles_before = tl.cdiv(before, SPEC.block_n)
        row = number - tiles_before
        return tl.where(row < 0, number * SPEC.block_n, before + row * SPEC.axis_width)
    else:
        return number * SPEC.block_n


@triton.jit
def tile_keys(args, j0, SPEC: tl.constexpr):
    """The keys of the tile from `j0` on, `(n,)`; one beyond the last key where it has none."""
    c = tl.arange(0, SPEC.block_n)
    if SPEC.grid_by_rows:
        before = tokens_before_grid(args, SPEC)
        in_tile = tl.where(j0 < before, before - j0, SPEC.axis_width)
        return tl.where(c < in_tile, j0 + c, args.seqlen_k)
    else:
        return j0 + c


@triton.jit
def dots_of_places(args, b, h, i, j0, SPEC: tl.constexpr):
    """What the last axis adds to the products of the tile of keys from `j0`: `(m, n)`."""
    c = tl.arange(0, SPEC.block_n)
    rows = _rows_of(args.inputs.key_axis_logits, b, h, i)
    rows += SPEC.num_key_coordinates - SPEC.axis_width
    width = tl.where(j0 >= tokens_before_grid(args, SPEC), SPEC.axis_width, 0)
    inside = (i < args.seqlen_q)[:, None] & (c < width)[None, :]
    logits = tl.load(rows[:, None] + c[None, :], mask=inside, other=0.0).to(tl.float32)
    return _not_too_low(logits, args) * (1.0 / args.inputs.scale)


@triton.jit
def bits_of_row(args, b, h, i, j0, SPEC: tl.constexpr):
    """What the first axis adds to the exponents of the tile of keys from `j0`, in bits: `(m,)`."""
    before = tokens_before_grid(args, SPEC)
    row = (j0 - before) // SPEC.axis_width
    inside = i < tl.where(j0 >= before, args.seqlen_q, 0)
    at = _rows_of(args.inputs.key_axis_logits, b, h, i) + row
    logits = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    return _not_too_low(logits, args) * LOG2_E


@triton.jit
def store_of_places(x, args, b, h, i, numbers, SPEC: tl.constexpr):
    """Write `numbers (m, n)`, as `dots_of_places` reads them."""
    c = tl.arange(0, SPEC.block_n)
    rows = _rows_of(x, b, h, i) + SPEC.num_key_coordinates - SPEC.axis_width
    inside = (i < args.seqlen_q)[:, None] & (c < SPEC.axis_width)[None, :]
    tl.store(rows[:, None] + c[None, :], numbers, mask=inside)


@triton.jit
def store_of_row(x, args, b, h, i, j0, numbers, SPEC: tl.constexpr):
    """Write `numbers (m,)`, as `bits_of_row` reads them."""
    row = (j0 - tokens_before_grid(args, SPEC)) // SPEC.axis_width
    tl.store(_rows_of(x, b, h, i) + row, numbers, mask=i < args.seqlen_q)


@triton.jit
def _not_too_low(logits, args):
    """Finite ones so that their sums stay finite, in bits and over the scale."""
    lowest = -5e37 * tl.minimum(args.inputs.scale, 1.0)
    return tl.where(logits > float("-inf"), tl.maximum(logits, lowest), logits)


@triton.jit
def _rows_of(x, b, h, i):
    base = x.ptr + tl.cast(b, tl.int64) * x.stride_b + tl.cast(h, tl.int64) * x.stride_h
    return base + tl.cast(i, tl.int64) * x.stride_n
