"""Packed documents: which keys a run of queries sees, and which pairs of a block they hide."""

from __future__ import annotations

import torch
from torch import Tensor

from .plan import Block, VisibleKeys

__all__ = ["hidden_by_documents", "keys_of_documents"]


def keys_of_documents(documents: Tensor, query_start: int) -> VisibleKeys:
    """The keys from the first to the last of all documents that some queries belong to.

    Args:
        documents: `(b or 1, j)` on the CPU.
        query_start: position of the first query, in tokens.
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
    stop = at.new_zeros(count).scatter_reduce_(0, flat, at + 1, "amax")[number]
    without_document = documents < 0
    first = first.masked_fill(without_document, keys)
    stop = stop.masked_fill(without_document, 0)

    def visible_keys(begin: int, end: int) -> tuple[int, int]:
        queries = slice(query_start + begin, query_start + end)
        first_key, stop_key = int(first[:, queries].min()), int(stop[:, queries].max())
        return (first_key, stop_key) if first_key < stop_key else (0, 0)

    return visible_keys


def hidden_by_documents(documents: Tensor, block: Block, query_start: int) -> Tensor:
    """`(b or 1, 1, m, n)`: True where query and key share no document."""
    batch = block.batch if documents.shape[0] > 1 else slice(0, 1)
    first = query_start + block.rows.begin
    queries = documents[batch, first : first + block.rows.count]
    keys = documents[batch, block.columns]
    different = queries.unsqueeze(2) != keys.unsqueeze(1)
    return (different | (keys < 0).unsqueeze(1)).unsqueeze(1)
