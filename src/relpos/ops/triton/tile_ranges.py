"""Which keys a tile of queries may see, and which queries a tile of keys, found on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import launch
from .kernels.tile_ranges import document_bounds_kernel, overlaps_kernel, range_bounds_kernel
from .layouts import number_of_layouts
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
    of_tiles = [
        _bounds(document_bounds_kernel, x, size) for x, size in ((of_queries, m), (of_keys, n))
    ]
    tiles = [x.shape[1] for x in of_tiles]
    batch = max(x.shape[0] for x in of_tiles)
    return (
        _overlaps(of_tiles[0], of_tiles[1], batch, *tiles, m, n),
        _overlaps(of_tiles[1], of_tiles[0], batch, *reversed(tiles), n, m),
    )


def tiles_of_key_ranges(key_ranges: Tensor, keys: int, m: int, n: int) -> TileRanges:
    """What tiles of `m` queries and tiles of `n` keys may see by the queries' ranges of keys.

    Args:
        key_ranges: `(b, i, 2)` in int32, contiguous, within `0..keys`.
        keys: how many there are.
        m: queries in a tile.
        n: keys in a tile.
    """
    of_queries = _bounds(range_bounds_kernel, key_ranges, m)
    batch, tiles, _ = of_queries.shape
    key_tiles = count_tiles(keys, n)
    return (
        _overlaps(of_queries, None, batch, tiles, key_tiles, m, n),
        _overlaps(None, of_queries, batch, key_tiles, tiles, n, m),
    )


def intersect(ranges: TileRanges, others: TileRanges) -> TileRanges:
    """What tiles may see by both."""
    by_queries, by_keys = (
        torch.stack([torch.maximum(x[..., 0], y[..., 0]), torch.minimum(x[..., 1], y[..., 1])], 2)
        for x, y in zip(ranges, others, strict=True)
    )
    return by_queries, by_keys


def _bounds(kernel: Any, x: Tensor, size: int) -> Tensor:
    """`(b or 1, tiles, 2)` of the tokens along the second axis of `x`, as the kernel finds them."""
    batch, tokens = x.shape[:2]
    bounds = x.new_empty((batch, count_tiles(tokens, size), 2), dtype=torch.int64)
    _run(kernel, bounds, x, bounds, tokens, like=(x, bounds), SIZE=size)
    return bounds


def _overlaps(
    bounds: Tensor | None, others: Tensor | None, batch: int, tiles: int, other_tiles: int,
    size: int, other_size: int,
) -> Tensor:  # fmt: skip
    """As `overlaps_kernel` writes them; None stands for bounds that are the tokens themselves."""
    given = bounds if bounds is not None else others
    assert given is not None
    found = given.new_empty((batch, tiles, 2), dtype=torch.int32)
    _run(
        overlaps_kernel, found, bounds, others, found, tiles, other_tiles, _stride_b(bounds),
        _stride_b(others), size, other_size, like=(bounds, others, found), BLOCK=_SHAPE.n,
    )  # fmt: skip
    return found


def _stride_b(bounds: Tensor | None) -> int:
    return 0 if bounds is None or bounds.shape[0] == 1 else bounds.stride(0)


def _run(
    kernel: Any, out: Tensor, *arguments: Any, like: tuple[Tensor | None, ...], **constants: int
) -> None:
    """A program for each tile of `out (b, tiles, 2)`."""
    programs = out.shape[0] * out.shape[1]
    if not programs:
        return
    with torch.cuda.device_of(out):
        launch.run_programs(
            kernel, programs, *arguments, shape=_SHAPE, known=number_of_layouts(like), **constants
        )
