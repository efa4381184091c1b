"""How the score matrix is walked: blocks of whole rows, and the three regions of each.

A table is constant to the left of its window of offsets and to the right of it. For the rows of one
block the columns therefore fall into three regions:

    left    every offset is at or below the window: each table is its left constant
    band    the rest; here the tables are read through the shear
    right   every offset is at or above the window: each table is its right constant
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..offset_window import OffsetWindow

__all__ = ["Block", "CallShape", "RowBlock", "VisibleKeys", "blocks", "row_blocks"]

# Scores that one block holds (times 4 bytes in float32): about the last-level cache of a CPU core,
# and enough work for a GPU. A single head's block may be larger, up to the second number.
_SCORES = {"cpu": (1 << 20, 1 << 21)}
_SCORES_ELSEWHERE = (1 << 25, 1 << 25)
_MIN_ROWS = 16
# An aligned row length makes the band's matrix product faster.
_BAND_ALIGNMENT = 16

# From queries `begin..end-1` to the first key that they may see and the one after the last.
VisibleKeys = Callable[[int, int], tuple[int, int]]


@dataclass(frozen=True)
class CallShape:
    """The sizes of one call: `b`, `g`, the query heads of each key head, `i` and `j`."""

    batch: int
    kv_heads: int
    heads_per_kv_head: int
    queries: int
    keys: int
    query_start: int  # position of the first query
    causal: bool
    device: str
    whole: bool = False  # causality cuts no block: that of a grid has whole lines of keys


@dataclass(frozen=True)
class RowBlock:
    """Queries `begin..end-1` and the columns that they may see, cut into regions.

    Column 0 is key `skip`.
    """

    begin: int
    end: int
    skip: int
    position: int  # of the first query, counted from key skip
    columns: int  # keys skip..skip+columns-1 are seen
    left: int  # columns 0..left-1 are the left region
    right: int  # columns right..columns-1 are the right region
    causal: bool

    @property
    def count(self) -> int:
        """Queries in the block."""
        return self.end - self.begin

    @property
    def band(self) -> int:
        """Columns in the band."""
        return self.right - self.left

    @property
    def first_offset(self) -> int:
        """The offset of column 0 of the band's unsheared scores."""
        return self.left - (self.position + self.count - 1)

    @property
    def span(self) -> int:
        """Offsets that the unsheared scores of the band hold, rounded up."""
        return -(-(self.count + self.band - 1) // _BAND_ALIGNMENT) * _BAND_ALIGNMENT

    @property
    def visible(self) -> slice:
        """The part of `span` that is computed: under a causal mask no offset is above 0."""
        return slice(0, min(self.span, 1 - self.first_offset) if self.causal else self.span)


@dataclass(frozen=True)
class Block:
    """Some rows of some heads: what is in memory at one time."""

    number: int
    rows: RowBlock
    batch: slice
    kv_heads: slice
    heads: slice

    @property
    def queries(self) -> tuple[slice, slice, slice]:
        """Index of this block's queries in a `(b, h, i, ...)` tensor."""
        return self.batch, self.heads, slice(self.rows.begin, self.rows.end)

    @property
    def keys(self) -> tuple[slice, slice, slice]:
        """Index of this block's keys in a `(b, g, j, ...)` tensor."""
        return self.batch, self.kv_heads, self.columns

    @property
    def columns(self) -> slice:
        """Index of this block's keys along j."""
        return slice(self.rows.skip, self.rows.skip + self.rows.columns)


def row_blocks(
    shape: CallShape, window: OffsetWindow | None, visible_keys: VisibleKeys | None = None
) -> list[RowBlock]:
    """All rows, the last ones first (under a causal mask those are the widest).

    Args:
        shape: the sizes of the call.
        window: of the tables; None without tables.
        visible_keys: which keys some queries may see; None: all.
    """
    _, max_scores = _SCORES.get(shape.device, _SCORES_ELSEWHERE)
    max_rows = 128 if shape.device == "cpu" else 512
    widest = shape.keys
    if visible_keys is not None:
        runs = (
            visible_keys(begin, min(begin + max_rows, shape.queries))
            for begin in range(0, shape.queries, max_rows)
        )
        widest = max((stop - skip for skip, stop in runs), default=0)
    count = max(_MIN_ROWS, min(max_rows, max_scores // max(1, shape.heads_per_kv_head * widest)))
    return [
        _row_block(shape, window, visible_keys, begin, min(begin + count, shape.queries))
        for begin in range(0, shape.queries, count)
    ][::-1]


def _row_block(
    shape: CallShape,
    window: OffsetWindow | None,
    visible_keys: VisibleKeys | None,
    begin: int,
    end: int,
) -> RowBlock:
    skip, stop = (0, shape.keys) if visible_keys is None else visible_keys(begin, end)
    position = shape.query_start + begin - skip
    last = position + end - begin - 1
    columns = max(stop - skip, 0)
    if shape.causal and not shape.whole:
        columns = min(max(last + 1, 0), columns)
    if window is None:
        return RowBlock(begin, end, skip, position, columns, columns, columns, shape.causal)
    left = min(max(position + window.low + 1, 0), columns)
    right = min(max(last + window.high, left), columns)
    return RowBlock(begin, end, skip, position, columns, left, right, shape.causal)


def blocks(shape: CallShape, rows: list[RowBlock]) -> Iterator[Block]:
    """Every block, in an order that forward and backward share (dropout depends on it)."""
    target, _ = _SCORES.get(shape.device, _SCORES_ELSEWHERE)
    number = 0
    for row_block in rows:
        if row_block.columns == 0:
            continue
        kv_heads = max(1, target // (shape.heads_per_kv_head * row_block.count * row_block.columns))
        batches = max(1, kv_heads // shape.kv_heads)
        kv_heads = min(kv_heads, shape.kv_heads)
        for b in range(0, shape.batch, batches):
            for g in range(0, shape.kv_heads, kv_heads):
                end = min(g + kv_heads, shape.kv_heads)
                yield Block(
                    number,
                    row_block,
                    slice(b, min(b + batches, shape.batch)),
                    slice(g, end),
                    slice(g * shape.heads_per_kv_head, end * shape.heads_per_kv_head),
                )
                number += 1
