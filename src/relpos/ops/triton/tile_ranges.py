"""Which keys a tile of queries may see, and which queries a tile of keys, found on the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["TileRanges", "intersect", "tiles_of_documents", "tiles_of_key_ranges"]

_MAX_TILE_PAIRS = 1 << 20  # that are compared at once

# Of tiles of queries, then of tiles of keys: `(b, tiles, 2)` int32, in whole tiles, the first token
# on the other side and the one after the last; none where the second is not above the first.
TileRanges = tuple[Tensor, Tensor]


def tiles_of_documents(of_queries: Tensor, of_keys: Tensor, m: int, n: int) -> TileRanges:
    """What tiles of `m` queries and tiles of `n` keys may see by their documents.

    Args:
        of_queries: the document of each query, `(b, i)`; negative for none.
        of_keys: that of each key, `(b, j)`.
        m: queries in a tile.
        n: keys in a tile.
    """
    query_tiles, key_tiles = _document_ranges(of_queries, m), _document_ranges(of_keys, n)
    return _overlaps(query_tiles, key_tiles, n), _overlaps(key_tiles, query_tiles, m)


def tiles_of_key_ranges(key_ranges: Tensor, keys: int, m: int, n: int) -> TileRanges:
    """What tiles of `m` queries and tiles of `n` keys may see by the queries' ranges of keys.

    Args:
        key_ranges: `(b, i, 2)`, within `0..keys`.
        keys: how many there are.
        m: queries in a tile.
        n: keys in a tile.
    """
    begin, end = key_ranges.unbind(2)
    empty = begin >= end
    begin, end = begin.masked_fill(empty, keys), end.masked_fill(empty, 0)
    rest = (0, -begin.shape[1] % m)
    begin = pad(begin, rest, value=keys).unflatten(1, (-1, m)).amin(2)
    end = pad(end, rest, value=0).unflatten(1, (-1, m)).amax(2)
    # A tile without keys begins behind its end, and overlaps with none.
    query_tiles = torch.stack([begin, end - 1], 2)
    first = torch.arange(0, keys, n, device=begin.device, dtype=begin.dtype)
    key_tiles = torch.stack([first, first + n - 1], 1).unsqueeze(0)
    whole = torch.stack([begin // n * n, (end + n - 1) // n * n], 2)
    return whole.int(), _overlaps(key_tiles, query_tiles, m)


def intersect(ranges: TileRanges, others: TileRanges) -> TileRanges:
    """What tiles may see by both."""
    by_queries, by_keys = (
        torch.stack([torch.maximum(x[..., 0], y[..., 0]), torch.minimum(x[..., 1], y[..., 1])], 2)
        for x, y in zip(ranges, others, strict=True)
    )
    return by_queries, by_keys


def _document_ranges(documents: Tensor, size: int) -> Tensor:
    """The lowest and the highest document of each tile, `(b, tiles, 2)`; none: an empty range."""
    padded = pad(documents, (0, -documents.shape[1] % size), value=-1).unflatten(1, (-1, size))
    lowest = padded.masked_fill(padded < 0, torch.iinfo(padded.dtype).max).amin(2)
    return torch.stack([lowest, padded.amax(2)], 2)


def _overlaps(tiles: Tensor, others: Tensor, size: int) -> Tensor:
    """From the first to the last of the `others` whose ranges overlap with those of each tile.

    Args:
        tiles: `(b or 1, tiles, 2)`, ranges of documents or of keys, both ends included.
        others: `(b or 1, other tiles, 2)`.
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
