"""Which tiles may see each other by documents or by ranges of keys, and which keys are seen at all.

A tile has bounds, both ends included: of its tokens' documents, of the keys that they may see, or
of its own tokens. Two tiles may see each other where their bounds overlap. Where nothing is, the
first end is above the second.
"""

import triton
import triton.language as tl

_LARGEST = tl.constexpr(2**63 - 1)


@triton.jit(do_not_specialize=("tokens",))
def document_bounds_kernel(documents, bounds, tokens, SIZE: tl.constexpr):
    """The lowest and the highest document of one tile of `SIZE` tokens.

    Reads:
        documents: `(b, tokens)` int64, contiguous; negative for none.

    Writes:
        bounds: `(b, tiles, 2)` int64.
    """
    tiles = tl.cdiv(tokens, SIZE)
    b = tl.cast(tl.program_id(0) // tiles, tl.int64)
    token = tl.program_id(0) % tiles * SIZE + tl.arange(0, SIZE)
    document = tl.load(documents + b * tokens + token, mask=token < tokens, other=-1)
    at = bounds + tl.cast(tl.program_id(0), tl.int64) * 2
    tl.store(at, tl.min(tl.where(document < 0, _LARGEST, document), 0))
    tl.store(at + 1, tl.max(document, 0))


@triton.jit(do_not_specialize=("queries",))
def range_bounds_kernel(key_ranges, bounds, queries, SIZE: tl.constexpr):
    """The first and the last key that some of `SIZE` queries may see.

    Reads:
        key_ranges: `(b, i, 2)` int32, contiguous: the first key of each, and the one after the
            last.

    Writes:
        bounds: `(b, tiles, 2)` int64.
    """
    tiles = tl.cdiv(queries, SIZE)
    b = tl.cast(tl.program_id(0) // tiles, tl.int64)
    i = tl.program_id(0) % tiles * SIZE + tl.arange(0, SIZE)
    begin, end = _ranges(key_ranges, b, i, queries)
    at = bounds + tl.cast(tl.program_id(0), tl.int64) * 2
    tl.store(at, tl.min(begin, 0))
    tl.store(at + 1, tl.max(end, 0) - 1)


@triton.jit(
    do_not_specialize=("tiles", "others", "stride_b", "other_stride_b", "size", "other_size")
)
def overlaps_kernel(
    bounds, other_bounds, overlaps, tiles, others, stride_b, other_stride_b, size, other_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """From the first to the last of the other tiles that one tile may see.

    Reads:
        bounds: `(b or 1, tiles, 2)` int64; None where they are the tile's own tokens.
        other_bounds: `(b or 1, others, 2)`, likewise.

    Writes:
        overlaps: `(b, tiles, 2)` int32: the first token of these, and the one after the last.
    """
    b = tl.cast(tl.program_id(0) // tiles, tl.int64)
    tile = tl.program_id(0) % tiles
    if bounds is None:
        lowest = tile * size
        highest = lowest + size - 1
    else:
        at = bounds + b * stride_b + tile * 2
        lowest = tl.load(at)
        highest = tl.load(at + 1)
    begin = others
    end = 0
    for first in range(0, others, BLOCK):
        other = first + tl.arange(0, BLOCK)
        if other_bounds is None:
            other_lowest = other * other_size
            other_highest = other_lowest + other_size - 1
        else:
            other_at = other_bounds + b * other_stride_b + other * 2
            other_lowest = tl.load(other_at, mask=other < others, other=_LARGEST)
            other_highest = tl.load(other_at + 1, mask=other < others, other=-1)
        meets = (lowest <= other_highest) & (other_lowest <= highest) & (other < others)
        begin = tl.minimum(begin, tl.min(tl.where(meets, other, others), 0))
        end = tl.maximum(end, tl.max(tl.where(meets, other + 1, 0), 0))
    at = overlaps + tl.cast(tl.program_id(0), tl.int64) * 2
    tl.store(at, tl.minimum(begin, end) * other_size)
    tl.store(at + 1, end * other_size)


@triton.jit(do_not_specialize=("queries", "keys"))
def keys_in_any_kernel(key_ranges, found, queries, keys, M: tl.constexpr, N: tl.constexpr):
    """Which of `N` keys are in the range of some query; it looks at `M` queries at once.

    Reads:
        key_ranges: as `range_bounds_kernel`.

    Writes:
        found: `(b, keys)` uint8.
    """
    blocks = tl.cdiv(keys, N)
    b = tl.cast(tl.program_id(0) // blocks, tl.int64)
    j0 = tl.program_id(0) % blocks * N
    j = j0 + tl.arange(0, N)
    is_seen = tl.zeros([N], tl.int32)
    for i0 in range(0, queries, M):
        begin, end = _ranges(key_ranges, b, i0 + tl.arange(0, M), queries)
        if (tl.min(begin, 0) < j0 + N) & (tl.max(end, 0) > j0):
            sees = (begin[:, None] <= j[None, :]) & (j[None, :] < end[:, None])
            is_seen = tl.maximum(is_seen, tl.max(sees.to(tl.int32), 0))
    tl.store(found + b * keys + j, is_seen.to(tl.uint8), mask=j < keys)


@triton.jit
def _ranges(key_ranges, b, i, queries):
    """Begin and end of the ranges of queries `i (m,)`; where one is empty, end is 0."""
    at = key_ranges + (b * queries + i) * 2
    begin = tl.load(at, mask=i < queries, other=2**31 - 1)
    end = tl.load(at + 1, mask=i < queries, other=0)
    is_empty = begin >= end
    return tl.where(is_empty, 2**31 - 1, begin), tl.where(is_empty, 0, end)
