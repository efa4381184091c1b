"""The three regions of tiles, by which rows of the tables their offsets `j - i` select.

    | LEFT: all select the first row | BAND: any row | RIGHT: all select the last row |

Seen from a tile of queries, as above, keys go by from left to right. Seen from a tile of keys, the
first queries lie in RIGHT and the last ones in LEFT. In LEFT and RIGHT a table's term is one number
for each query (or key); the band alone needs the shear. Regions are whole tiles:

    [begin, band_begin)  [band_begin, band_end)  [band_end, end)

Before `begin` and from `end` on lie the tiles without a pair that takes part: what is ahead of
causal queries, outside windows, in no range, of other documents. They are not read or computed.
"""

import triton
import triton.language as tl

from .structs import Regions
from .tables import load_row

LEFT = tl.constexpr(0)
BAND = tl.constexpr(1)
RIGHT = tl.constexpr(2)
ANY = tl.constexpr(3)  # of a tile that may be anywhere


@triton.constexpr_function
def on_grid(REGION, SPEC):
    """Whether each tile of a region is one row of the grid (`grid_rows.py`)."""
    return SPEC.grid_by_rows and REGION == BAND


@triton.constexpr_function
def tile_step(REGION, SPEC):
    """From a tile's first key to the next one's."""
    return SPEC.axis_width if on_grid(REGION, SPEC) else SPEC.block_n


@triton.constexpr_function
def stages_of(REGION, SPEC):
    """The stages of the pipeline in a region's loop; None: as the kernel's.

    A narrow band is short: what its pipeline would hold is better left to other programs.
    """
    return 1 if SPEC.has_narrow_band and REGION == BAND else None


@triton.constexpr_function
def adds_to_rows(REGION, SPEC):
    """Whether the table of keys adds one number to all scores of a row, and these are not scaled.

    Then that goes into the exponents by what is subtracted from them.
    """
    return SPEC.has_keys and SPEC.scale_last and (REGION == LEFT or REGION == RIGHT)


@triton.constexpr_function
def has_row_bits(REGION, SPEC):
    """Whether something is added to all exponents of a row: by a table, or by a grid's axis."""
    return on_grid(REGION, SPEC) or adds_to_rows(REGION, SPEC)


@triton.constexpr_function
def adds_to_deltas(REGION, SPEC):
    """Whether the table of values adds one number to `dP` of a row, which may come off its delta.

    Not with dropout, which leaves out single pairs of `dP`.
    """
    is_end = REGION == LEFT or REGION == RIGHT
    return SPEC.has_values and not SPEC.has_dropout and is_end


@triton.jit
def offset_row(args, pairs):
    """Each pair's offset, counted from that of the tables' first row: the row, if there is one."""
    return pairs.c + row_of_first_key(args, pairs)


@triton.jit
def row_of_first_key(args, pairs):
    """`offset_row` of the tile's first key, in the shape of `pairs.i`."""
    return pairs.j0 - (args.query_start + pairs.i) - args.table_first


@triton.jit
def table_row(args, pairs):
    """The row of the tables that each pair's offset selects."""
    return tl.minimum(tl.maximum(offset_row(args, pairs), 0), args.table_rows - 1)


@triton.jit
def end_table_row(args, REGION: tl.constexpr):
    """The row that all offsets of LEFT or RIGHT select."""
    return 0 if REGION == LEFT else args.table_rows - 1


@triton.jit
def end_dot(args, TABLE: tl.constexpr, h, x, REGION: tl.constexpr, SPEC: tl.constexpr):
    """`x (tokens, BLOCK)` dotted with that row of a table, in float32: `(tokens,)`."""
    row = load_row(args, TABLE, h, end_table_row(args, REGION), SPEC)
    return tl.sum(x.to(tl.float32) * row[None, :], 1)


@triton.jit
def times_end_row(x, args, TABLE: tl.constexpr, h, REGION: tl.constexpr, SPEC: tl.constexpr):
    """`x (tokens,)` times that row, in float32: `(tokens, BLOCK)`."""
    row = load_row(args, TABLE, h, end_table_row(args, REGION), SPEC)
    return x[:, None] * row[None, :]


@triton.jit
def end_row_sums(args, pairs, x, AXIS: tl.constexpr, REGION: tl.constexpr):
    """The sums of `x (m, n)` along `AXIS` over pairs that select the tables' first row, and last.

    `(m,)` each for `AXIS` 1, `(n,)` for 0.
    """
    if REGION == LEFT:
        first = tl.sum(x, AXIS)
        return first, tl.zeros_like(first)
    elif REGION == BAND:
        row = offset_row(args, pairs)
        first = tl.sum(tl.where(row <= 0, x, 0.0), AXIS)
        return first, tl.sum(tl.where(row >= args.table_rows - 1, x, 0.0), AXIS)
    else:
        last = tl.sum(x, AXIS)
        return tl.zeros_like(last), last


@triton.jit
def selects_end_row(args, i0, j0, SPEC: tl.constexpr):
    """Whether some pair of the tile of queries from `i0` and keys from `j0` selects such a row."""
    row = j0 - (args.query_start + i0 + SPEC.block_m - 1) - args.table_first
    return (row <= 0) | (row + SPEC.block_m + SPEC.block_n - 1 >= args.table_rows)


@triton.jit
def query_tile(tile, tiles_per_head, args, SPEC: tl.constexpr):
    """`b`, `h` and the first query of tile number `tile`: the last queries first."""
    i0 = (tiles_per_head - 1 - tile % tiles_per_head) * SPEC.block_m
    head = tile // tiles_per_head
    return head // args.inputs.heads, head % args.inputs.heads, i0


@triton.jit
def region_bounds(regions, REGION: tl.constexpr, FIRST: tl.constexpr):
    """Where a region begins and ends; `FIRST` is the first one, LEFT or RIGHT."""
    if REGION == BAND:
        return regions.band_begin, regions.band_end
    elif REGION == FIRST:
        return regions.begin, regions.band_begin
    else:
        return regions.band_end, regions.end


@triton.jit
def key_regions(args, b, i0, SPEC: tl.constexpr):
    """The regions of the keys for the queries `i0..i0 + m - 1`; LEFT comes first.

    Where nothing depends on the offset, all keys are in LEFT; but if tiles are rows of a grid,
    those are in BAND.
    """
    if SPEC.grid_by_rows:
        rows = SPEC.num_key_coordinates - SPEC.axis_width
        before = args.seqlen_k - rows * SPEC.axis_width
        return Regions(0, before, args.seqlen_k, args.seqlen_k)
    position = args.query_start + i0
    begin = 0
    end = args.seqlen_k
    if SPEC.is_causal:
        end = tl.minimum(end, tl.maximum(position + SPEC.block_m, 0))
    if SPEC.has_max_offset:
        end = tl.minimum(end, tl.maximum(position + SPEC.block_m + args.max_offset, 0))
    if SPEC.has_tile_ranges:
        tiles = tl.cdiv(args.seqlen_q, SPEC.block_m)
        key_range = args.inputs.tile_key_ranges + (b * tiles + i0 // SPEC.block_m) * 2
        begin = tl.load(key_range)
        end = tl.minimum(end, tl.load(key_range + 1))
    if SPEC.has_min_offset:
        first = tl.maximum(position + args.min_offset, 0) // SPEC.block_n * SPEC.block_n
        begin = tl.maximum(begin, first)
    end = tl.maximum(tl.cdiv(end, SPEC.block_n) * SPEC.block_n, begin)
    if SPEC.has_keys or SPEC.has_queries or SPEC.has_bias or SPEC.has_values or SPEC.is_causal:
        band_begin = tl.maximum(position + args.table_first + 1, 0) // SPEC.block_n * SPEC.block_n
        band_begin = tl.minimum(tl.maximum(band_begin, begin), end)
        last = position + SPEC.block_m - 1 + args.table_first + args.table_rows - 1
        band_end = tl.cdiv(tl.maximum(last, 0), SPEC.block_n) * SPEC.block_n
        band_end = tl.minimum(tl.maximum(band_end, band_begin), end)
    else:
        band_begin = end
        band_end = end
    return Regions(begin, band_begin, band_end, end)


@triton.jit
def within_split(lower, upper, regions, splits, SPEC: tl.constexpr):
    """What of `[lower, upper)` is in the program's one of `splits` parts of the keys."""
    tiles = tl.cdiv(tl.cdiv(regions.end - regions.begin, SPEC.block_n), splits)
    begin = regions.begin + tl.program_id(0) % splits * tiles * SPEC.block_n
    lower = tl.maximum(lower, begin)
    upper = tl.minimum(upper, begin + tiles * SPEC.block_n)
    return lower, tl.maximum(lower, upper)


@triton.jit
def query_regions(args, b, j0, SPEC: tl.constexpr):
    """The regions of the queries for the keys `j0..j0 + n - 1`; RIGHT comes first.

    Where nothing depends on the offset, all queries are in LEFT.
    """
    begin = 0
    end = tl.cdiv(args.seqlen_q, SPEC.block_m) * SPEC.block_m
    key = j0 - args.query_start
    if SPEC.is_causal:
        begin = tl.maximum(key, 0) // SPEC.block_m * SPEC.block_m
    if SPEC.has_max_offset:
        first = tl.maximum(key - args.max_offset, 0) // SPEC.block_m * SPEC.block_m
        begin = tl.maximum(begin, first)
    if SPEC.has_min_offset:
        after = tl.maximum(key + SPEC.block_n - args.min_offset, 0)
        end = tl.minimum(end, tl.cdiv(after, SPEC.block_m) * SPEC.block_m)
    if SPEC.has_tile_ranges:
        tiles = tl.cdiv(args.seqlen_k, SPEC.block_n)
        query_range = args.inputs.tile_query_ranges + (b * tiles + j0 // SPEC.block_n) * 2
        begin = tl.maximum(begin, tl.load(query_range))
        end = tl.minimum(end, tl.load(query_range + 1))
    begin = tl.minimum(begin, end)
    if SPEC.has_keys or SPEC.has_queries or SPEC.has_bias or SPEC.has_values or SPEC.is_causal:
        last = args.table_first + args.table_rows - 1
        band_begin = tl.maximum(key - last + 1, 0) // SPEC.block_m * SPEC.block_m
        band_begin = tl.minimum(tl.maximum(band_begin, begin), end)
        ahead = tl.maximum(key + SPEC.block_n - 1 - args.table_first, 0)
        band_end = tl.cdiv(ahead, SPEC.block_m) * SPEC.block_m
        band_end = tl.minimum(tl.maximum(band_end, band_begin), end)
    else:
        band_begin = begin
        band_end = begin
    return Regions(begin, band_begin, band_end, end)


@triton.jit
def has_pairs(args, b, i0, first_key, end_key, SPEC: tl.constexpr):
    """Whether some query `i0..i0 + m - 1` may see a key `first_key..end_key - 1`.

    True without a look where neither a window nor ranges leave any tile out.
    """
    if SPEC.has_tile_ranges or SPEC.has_min_offset or SPEC.has_max_offset:
        regions = key_regions(args, b, i0, SPEC)
        return tl.maximum(regions.begin, first_key) < tl.minimum(regions.end, end_key)
    else:
        return True
