"""Which tiles may see each other by documents or by ranges of keys, and which keys are seen at all.

A tile has bounds, both ends included: of its tokens' documents, of the keys that they may see, or
of its own tokens. Two tiles may see each other where their bounds overlap. Where nothing is, the
first end is above the second.
"""

import triton
import triton.language as tl

_LARGEST = tl.constexpr(2**63 - 1)
_FAR = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=("tokens", "size"))
def document_bounds_kernel(documents, bounds, tokens, size, BLOCK: tl.constexpr):
    """The lowest and the highest document of one tile of `size` tokens, `BLOCK` at once.

    Reads:
        documents: `(b, tokens)` int64, contiguous; negative for none.

    Writes:
        bounds: `(b, tiles, 2)` int64.
    """
    tiles = tl.cdiv(tokens, size)
    b = tl.cast(tl.program_id(0) // tiles, tl.int64)
    begin = tl.program_id(0) % tiles * size
    end = tl.minimum(begin + size, tokens)
    lowest = tl.full([BLOCK], _LARGEST, tl.int64)
    highest = tl.full([BLOCK], -1, tl.int64)
    for first in range(begin, end, BLOCK):
        token = first + tl.arange(0, BLOCK)
        document = tl.load(documents + b * tokens + token, mask=token < end, other=-1)
        lowest = tl.minimum(lowest, tl.where(document < 0, _LARGEST, document))
        highest = tl.maximum(highest, document)
    at = bounds + tl.cast(tl.program_id(0), tl.int64) * 2
    tl.store(at, tl.min(lowest, 0))
    tl.store(at + 1, tl.max(highest, 0))


@triton.jit(do_not_specialize=("queries", "size", "keys_of_tile"))
def range_bounds_kernel(
    key_ranges, bounds, overlaps, queries, size, keys_of_tile, BLOCK: tl.constexpr
):
    """The first and the last key that `size` queries may see, and in which tiles these are.

    Reads:
        key_ranges: `(b, i, 2)` int32, contiguous: the first key of each, and the one after the
            last.

    Writes:
        bounds: `(b, tiles, 2)` int64.
        overlaps: `(b, tiles, 2)` int32, as `document_overlaps_kernel`.
    """
    tiles = tl.cdiv(queries, size)
    b = tl.cast(tl.program_id(0) // tiles, tl.int64)
    i_begin = tl.program_id(0) % tiles * size
    i_end = tl.minimum(i_begin + size, queries)
    first = tl.full([BLOCK], _FAR, tl.int32)
    end = tl.full([BLOCK], 0, tl.int32)
    for i0 in range(i_begin, i_end, BLOCK):
        begins, ends = _ranges(key_ranges, b, i0 + tl.arange(0, BLOCK), queries, i_end)
        first = tl.minimum(first, begins)
        end = tl.maximum(end, ends)
    first = tl.min(first, 0)
    end = tl.max(end, 0)
    at = tl.cast(tl.program_id(0), tl.int64) * 2
    tl.store(bounds + at, first)
    tl.store(bounds + at + 1, end - 1)
    end = tl.cdiv(end, keys_of_tile) * keys_of_tile
    tl.store(overlaps + at, tl.minimum(first // keys_of_tile * keys_of_tile, end))
    tl.store(overlaps + at + 1, end)


@triton.jit(
    do_not_specialize=("tiles", "others", "stride_b", "other_stride_b", "other_size")
)  # fmt: skip
def document_overlaps_kernel(
    bounds, other_bounds, overlaps, tiles, others, stride_b, other_stride_b, other_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """From the first to the last of the other tiles that one tile may see by documents.

    Reads:
        bounds: `(b or 1, tiles, 2)` int64, with 0 for the stride of 1.
        other_bounds: `(b or 1, others, 2)`, likewise.

    Writes:
        overlaps: `(b, tiles, 2)` int32: the first token of these, and the one after the last.
    """
    b = tl.cast(tl.program_id(0) // tiles, tl.int64)
    at = bounds + b * stride_b + tl.program_id(0) % tiles * 2
    other_at = other_bounds + b * other_stride_b
    begin, end = _first_to_last(tl.load(at), tl.load(at + 1), other_at, others, BLOCK)
    at = overlaps + tl.cast(tl.program_id(0), tl.int64) * 2
    tl.store(at, begin * other_size)
    tl.store(at + 1, end * other_size)


@triton.jit(do_not_specialize=("tiles", "others", "size", "other_size"))
def key_overlaps_kernel(
    other_bounds, overlaps, tiles, others, size, other_size, BLOCK: tl.constexpr
):
    """From the first to the last tile of queries that may see one tile of `size` keys.

    Reads:
        other_bounds: `(b, others, 2)` int64, of the queries, by keys.

    Writes:
        overlaps: as `document_overlaps_kernel`.
    """
    b = tl.cast(tl.program_id(0) // tiles, tl.int64)
    first = tl.program_id(0) % tiles * size
    other_at = other_bounds + b * others * 2
    begin, end = _first_to_last(first, first + size - 1, other_at, others, BLOCK)
    at = overlaps + tl.cast(tl.program_id(0), tl.int64) * 2
    tl.store(at, begin * other_size)
    tl.store(at + 1, end * other_size)


@triton.jit
def _first_to_last(lowest, highest, other_bounds, others, BLOCK: tl.constexpr):
    """The first of the `others (., 2)` that overlap, and the one after the last; or 0 and 0."""
    begin = others
    end = 0
    for first in range(0, others, BLOCK):
        other = first + tl.arange(0, BLOCK)
        at = other_bounds + other * 2
        other_lowest = tl.load(at, mask=other < others, other=_LARGEST)
        other_highest = tl.load(at + 1, mask=other < others, other=-1)
        meets = (lowest <= other_highest) & (other_lowest <= highest) & (other < others)
        begin = tl.minimum(begin, tl.min(tl.where(meets, other, others), 0))
        end = tl.maximum(end, tl.max(tl.where(meets, other + 1, 0), 0))
    return tl.minimum(begin, end), end


@triton.jit(do_not_specialize=("queries", "keys"))
def keys_in_any_kernel(key_ranges, by_keys, found, queries, keys, M: tl.constexpr, N: tl.constexpr):
    """Which of `N` keys are in the range of some query; it looks at `M` queries at once.

    Reads:
        key_ranges: as `range_bounds_kernel`.
        by_keys: `(b, tiles of N keys, 2)` int32: the queries that may see a tile.

    Writes:
        found: `(b, keys)` uint8.
    """
    blocks = tl.cdiv(keys, N)
    b = tl.cast(tl.program_id(0) // blocks, tl.int64)
    j = tl.program_id(0) % blocks * N + tl.arange(0, N)
    at = by_keys + tl.cast(tl.program_id(0), tl.int64) * 2
    is_seen = (j >= keys).to(tl.int32)
    for i0 in range(tl.load(at), tl.load(at + 1), M):
        if tl.min(is_seen, 0) == 0:
            begin, end = _ranges(key_ranges, b, i0 + tl.arange(0, M), queries, queries)
            sees = (begin[:, None] <= j[None, :]) & (j[None, :] < end[:, None])
            is_seen = tl.maximum(is_seen, tl.max(sees.to(tl.int32), 0))
    tl.store(found + b * keys + j, is_seen.to(tl.uint8), mask=j < keys)


@triton.jit
def _ranges(key_ranges, b, i, queries, i_end):
    """Where the ranges of queries `i (m,)` begin and end; of one that is empty, far off and at 0.

    From `i_end` on they count as empty.
    """
    at = key_ranges + (b * queries + i) * 2
    begin = tl.load(at, mask=i < i_end, other=0)
    end = tl.load(at + 1, mask=i < i_end, other=0)
    is_empty = begin >= end
    return tl.where(is_empty, _FAR, begin), tl.where(is_empty, 0, end)
