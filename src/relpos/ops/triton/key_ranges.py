"""Ranges of keys as the kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..layouts import number_of_layouts
from . import launch
from .kernels.tile_ranges import keys_in_any_kernel
from .tile_ranges import tiles_of_key_ranges
from .tuning import TileShape, count_tiles

__all__ = ["KeyRanges"]

_SHAPE = TileShape(64, 128, 4, 1)


class KeyRanges(NamedTuple):
    """The keys that queries may see by their ranges, for each sequence of a batch.

    Args:
        of_queries: `(b, i, 2)` int32: the first key of each query, and the one after the last.
        keys_in_any: `(b, j)` uint8: whether a key is in the range of some query.
    """

    of_queries: Tensor
    keys_in_any: Tensor

    @classmethod
    def of(cls, key_ranges: Tensor, batch: int, keys: int) -> KeyRanges:
        """Some `key_ranges (b or 1, i, 2)`, without what lies outside `0..keys`."""
        within = key_ranges.clamp(0, keys).int().contiguous()
        in_any = _keys_in_any(within, keys)
        return cls(*(x.expand(batch, *x.shape[1:]).contiguous() for x in (within, in_any)))


def _keys_in_any(key_ranges: Tensor, keys: int) -> Tensor:
    """`(b or 1, keys)` uint8."""
    batch, queries, _ = key_ranges.shape
    _, by_keys = tiles_of_key_ranges(key_ranges, keys, _SHAPE.m, _SHAPE.n)
    found = key_ranges.new_empty((batch, keys), dtype=torch.uint8)
    if programs := batch * count_tiles(keys, _SHAPE.n):
        with torch.cuda.device_of(found):
            launch.run_programs(
                keys_in_any_kernel, programs, key_ranges, by_keys, found, queries, keys,
                shape=_SHAPE, known=number_of_layouts((key_ranges, by_keys, found)), M=_SHAPE.m,
                N=_SHAPE.n,
            )  # fmt: skip
    return found
