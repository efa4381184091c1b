"""Packed documents: which keys a tile of queries may see, and which queries a tile of keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["tile_ranges"]

_MAX_TILE_PAIRS = 1 << 20  # that are compared at once


def tile_ranges(of_queries: Tensor, of_keys: Tensor, m: int, n: int) -> tuple[Tensor, Tensor]:
    """The keys that tiles of `m` queries may see, and the queries that may see tiles of `n` keys.

    Args:
        of_queries: the document of each query, `(b, i)`; negative for none.
        of_keys: that of each key, `(b, j)`.
        m: queries in a tile.
        n: keys in a tile.

    Returns:
        `(b, tiles, 2)` int32 each: the first token and the one after the last, in whole tiles.
    """
    query_tiles, key_tiles = _document_ranges(of_queries, m), _document_ranges(of_keys, n)
    return _overlaps(query_tiles, key_tiles, n), _overlaps(key_tiles, query_tiles, m)


def _document_ranges(documents: Tensor, size: int) -> Tensor:
    """The lowest and the highest document of each tile, `(b, tiles, 2)`; none: an empty range."""
    padded = pad(documents, (0, -documents.shape[1] % size), value=-1).unflatten(1, (-1, size))
    lowest = padded.masked_fill(padded < 0, torch.iinfo(padded.dtype).max).amin(2)
    return torch.stack([lowest, padded.amax(2)], 2)


def _overlaps(tiles: Tensor, others: Tensor, size: int) -> Tensor:
    """From the first to the last of the `others` whose documents overlap with those of each tile.

    Args:
        tiles: `(b, tiles, 2)`, ranges of documents.
        others: `(b, other tiles, 2)`.
        size: tokens in one of the others.

    Returns:
        `(b, tiles, 2)` int32, in tokens: the first, and the one after the last.
    """
    count = others.shape[1]
    number = torch.arange(count, device=tiles.device, dtype=torch.int32)
    lowest, highest = others.unsqueeze(1).unbind(3)
    ranges = []
    for chunk in tiles.split(max(1, _MAX_TILE_PAIRS // count), 1):  # so that memory stays O(L)
        apart = (chunk[:, :, :1] > highest) | (lowest > chunk[:, :, 1:])
        end = (number + 1).expand_as(apart).masked_fill(apart, 0).amax(2)
        begin = number.expand_as(apart).masked_fill(apart, count).amin(2)
        ranges.append(torch.stack([torch.minimum(begin, end), end], 2))
    return torch.cat(ranges, 1) * size
