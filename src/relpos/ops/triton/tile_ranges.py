"""Which keys a tile of queries may see, and which queries a tile of keys, found on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..layouts import number_of_layouts
from . import launch
from .kernels.tile_ranges import (
    document_bounds_kernel,
    document_overlaps_kernel,
    key_overlaps_kernel,
    range_bounds_kernel,
)
from .tuning import TileShape, count_tiles

__all__ = ["TileRanges", "intersect", "tiles_of_documents", "tiles_of_key_ranges"]

_SHAPE = TileShape(128, 128, 4, 1)

# Of tiles of queries, then of tiles of keys: `(b, tiles, 2)` int32, in whole tiles, the first token
# on the other side and the one after the last; none where the second is not above the first.
TileRanges = tuple[Tensor, Tensor]


def tiles_of_documents(of_queries: Tensor, of_keys: Tensor, m: int, n: int) -> TileRanges:
    """What tiles of `m` queries and tiles of `n` keys may see by their documents.

    Args:
        of_queries: the document of each query, `(b or 1, i)` in int64, contiguous; negative for
            none.
        of_keys: that of each key, `(b or 1, j)`, likewise.
        m: queries in a tile.
        n: keys in a tile.
    """
    query_tiles, key_tiles = _documents_of_tiles(of_queries, m), _documents_of_tiles(of_keys, n)
    return _overlaps(query_tiles, key_tiles, n), _overlaps(key_tiles, query_tiles, m)


def tiles_of_key_ranges(key_ranges: Tensor, keys: int, m: int, n: int) -> TileRanges:
    """What tiles of `m` queries and tiles of `n` keys may see by the queries' ranges of keys.

    Args:
        key_ranges: `(b, i, 2)` in int32, contiguous, within `0..keys`.
        keys: how many there are.
        m: queries in a tile.
        n: keys in a tile.
    """
    batch, queries, _ = key_ranges.shape
    query_tiles, key_tiles = count_tiles(queries, m), count_tiles(keys, n)
    bounds = key_ranges.new_empty((batch, query_tiles, 2), dtype=torch.int64)
    by_queries, by_keys = (
        key_ranges.new_empty((batch, tiles, 2), dtype=torch.int32)
        for tiles in (query_tiles, key_tiles)
    )
    _run(
        range_bounds_kernel, batch * query_tiles, (key_ranges, bounds, by_queries), queries, m, n,
        BLOCK=_SHAPE.n,
    )  # fmt: skip
    _run(
        key_overlaps_kernel, batch * key_tiles, (bounds, by_keys), key_tiles, query_tiles, n, m,
        BLOCK=_SHAPE.n,
    )  # fmt: skip
    return by_queries, by_keys


def intersect(ranges: TileRanges, others: TileRanges) -> TileRanges:
    """What tiles may see by both."""
    by_queries, by_keys = (
        torch.stack([torch.maximum(x[..., 0], y[..., 0]), torch.minimum(x[..., 1], y[..., 1])], 2)
        for x, y in zip(ranges, others, strict=True)
    )
    return by_queries, by_keys


def _documents_of_tiles(documents: Tensor, size: int) -> Tensor:
    """The lowest and the highest document of each tile, `(b or 1, tiles, 2)`."""
    batch, tokens = documents.shape
    bounds = documents.new_empty((batch, count_tiles(tokens, size), 2))
    programs = batch * bounds.shape[1]
    _run(document_bounds_kernel, programs, (documents, bounds), tokens, size, BLOCK=_SHAPE.n)
    return bounds


def _overlaps(bounds: Tensor, others: Tensor, size: int) -> Tensor:
    """The first to the last token of the `others`, of `size`, that each tile may see.

    Args:
        bounds: `(b or 1, tiles, 2)`.
        others: `(b or 1, other tiles, 2)`.
        size: tokens in one of the others.
    """
    batch, tiles = max(bounds.shape[0], others.shape[0]), bounds.shape[1]
    found = bounds.new_empty((batch, tiles, 2), dtype=torch.int32)
    strides = (0 if x.shape[0] == 1 else x.stride(0) for x in (bounds, others))
    _run(
        document_overlaps_kernel, batch * tiles, (bounds, others, found), tiles, others.shape[1],
        *strides, size, BLOCK=_SHAPE.n,
    )  # fmt: skip
    return found


def _run(
    kernel: Any, programs: int, tensors: tuple[Tensor, ...], *numbers: int, **constants: int
) -> None:
    """Run a kernel of these tensors and numbers."""
    if not programs:
        return
    with torch.cuda.device_of(tensors[0]):
        launch.run_programs(
            kernel, programs, *tensors, *numbers, shape=_SHAPE, known=number_of_layouts(tensors),
            **constants,
        )  # fmt: skip
