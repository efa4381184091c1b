"""Local attention: which keys a run of queries sees, and which pairs of a block are hidden."""

from __future__ import annotations

import torch
from torch import Tensor

from ..locality import Window, outside_ranges, outside_window
from .plan import Block, VisibleKeys

__all__ = ["hidden_by_ranges", "hidden_by_window", "intersect", "keys_of_ranges", "keys_of_window"]


def keys_of_window(window: Window, query_start: int, keys: int) -> VisibleKeys:
    """The keys from the first to the last that are in the window of some query.

    Args:
        window: of a line of tokens.
        query_start: position of the first query, in tokens.
        keys: number of keys.
    """
    left, right = window

    def visible_keys(begin: int, end: int) -> tuple[int, int]:
        first = 0 if left is None else query_start + begin - left
        stop = keys if right is None else query_start + end + right
        return min(max(first, 0), keys), min(max(stop, 0), keys)

    return visible_keys


def keys_of_ranges(key_ranges: Tensor, keys: int) -> VisibleKeys:
    """The keys from the first to the last that are in the range of some query.

    Args:
        key_ranges: `(b or 1, i, 2)` on the CPU.
        keys: number of keys.
    """
    if not len(key_ranges):
        return lambda begin, end: (0, 0)
    first, stop = key_ranges.clamp(0, keys).unbind(-1)
    empty = first >= stop
    # Of a query, in whatever batch entry; an empty range widens nothing.
    first = first.masked_fill(empty, keys).amin(0)
    stop = stop.masked_fill(empty, 0).amax(0)
    return lambda begin, end: (int(first[begin:end].min()), int(stop[begin:end].max()))


def intersect(every: list[VisibleKeys]) -> VisibleKeys | None:
    """The keys that all of them see; None for none."""
    if not every:
        return None

    def visible_keys(begin: int, end: int) -> tuple[int, int]:
        ranges = [one(begin, end) for one in every]
        first, stop = max(first for first, _ in ranges), min(stop for _, stop in ranges)
        return (first, stop) if first < stop else (0, 0)

    return visible_keys


def hidden_by_window(window: Window, block: Block, device: torch.device) -> Tensor | None:
    """`(m, n)`: True where a key is outside a query's window; None if all are inside.

    Args:
        window: of a line of tokens.
        block: where.
        device: of the result.
    """
    rows, (left, right) = block.rows, window
    reaches_left = left is None or rows.position + rows.count - 1 <= left
    reaches_right = right is None or rows.columns - 1 - rows.position <= right
    if reaches_left and reaches_right:
        return None
    queries = torch.arange(rows.position, rows.position + rows.count, device=device)
    keys = torch.arange(rows.columns, device=device)
    return outside_window(keys - queries.unsqueeze(1), window)


def hidden_by_ranges(key_ranges: Tensor, block: Block) -> Tensor:
    """`(b or 1, 1, m, n)`: True where a key is not in a query's range."""
    batch = block.batch if key_ranges.shape[0] > 1 else slice(0, 1)
    keys = torch.arange(block.columns.start, block.columns.stop, device=key_ranges.device)
    return outside_ranges(key_ranges[batch, block.rows.begin : block.rows.end], keys)
