"""Ranges of keys as the kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["KeyRanges"]


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
        """Those of some `key_ranges (b or 1, i, 2)`, without what lies outside `0..keys`.

        >>> KeyRanges.of(torch.tensor([[[3, 4], [2, 1], [-1, 2]]]), 1, 5).keys_in_any
        tensor([[1, 1, 0, 1, 0]], dtype=torch.uint8)
        """
        within = key_ranges.clamp(0, keys).int()
        in_any = _keys_in_any(within, keys).byte()
        return cls(*(x.expand(batch, *x.shape[1:]).contiguous() for x in (within, in_any)))


def _keys_in_any(key_ranges: Tensor, keys: int) -> Tensor:
    """`(b or 1, keys)`: whether more ranges have begun than ended at a key."""
    begin, end = key_ranges.unbind(2)
    empty = begin >= end
    each = torch.arange(keys, device=begin.device, dtype=begin.dtype)
    each = each.expand(begin.shape[0], -1).contiguous()
    begun, ended = (
        torch.searchsorted(side.masked_fill(empty, keys).sort(1).values, each, right=True)
        for side in (begin, end)
    )
    return begun > ended
