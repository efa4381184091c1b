"""Packed documents: which keys a run of queries sees, and which pairs of a block are apart."""

from __future__ import annotations

import torch
from torch import Tensor

from .plan import Block, VisibleKeys

__all__ = ["apart", "keys_of_documents"]


def keys_of_documents(documents: Tensor, start: int) -> VisibleKeys:
    """The keys from the first to the last of all documents that some queries belong to.

    Args:
        documents: `(b or 1, j)` on the CPU.
        start: position of query 0.
    """
    batch, keys = documents.shape
    if documents.numel() == 0:
        return lambda begin, end: (0, keys)
    _, number = documents.unique(return_inverse=True)
    # A number may stand in several rows of the batch, where it is another document.
    number = number + torch.arange(batch).unsqueeze(1) * (int(number.max()) + 1)
    at = torch.arange(keys).expand(batch, -1).flatten()
    count, flat = int(number.max()) + 1, number.flatten()
    first = at.new_full((count,), keys).scatter_reduce_(0, flat, at, "amin")[number]
    last = at.new_zeros(count).scatter_reduce_(0, flat, at + 1, "amax")[number]
    nowhere = documents < 0
    first, last = first.masked_fill(nowhere, keys), last.masked_fill(nowhere, 0)

    def visible_keys(begin: int, end: int) -> tuple[int, int]:
        queries = slice(start + begin, start + end)
        first_key, last_key = int(first[:, queries].min()), int(last[:, queries].max())
        return (first_key, last_key) if first_key < last_key else (0, 0)

    return visible_keys


def apart(documents: Tensor, block: Block, start: int) -> Tensor:
    """`(b or 1, 1, m, n)`: True where query and key belong to no common document."""
    batch = block.batch if documents.shape[0] > 1 else slice(0, 1)
    queries = documents[batch, start + block.rows.begin : start + block.rows.end]
    keys = documents[batch, block.columns]
    different = queries.unsqueeze(2) != keys.unsqueeze(1)
    return (different | (keys < 0).unsqueeze(1)).unsqueeze(1)
