"""Packed documents: which keys a run of queries sees, and which pairs of a block they hide."""

from __future__ import annotations

import torch
from torch import Tensor

from .plan import Block, VisibleKeys

__all__ = ["hidden_by_documents", "keys_of_documents"]


def keys_of_documents(documents: Tensor, query_documents: Tensor) -> VisibleKeys:
    """The keys from the first to the last of all documents that some queries belong to.

    Args:
        documents: of the keys, `(b or 1, j)` on the CPU.
        query_documents: of the queries, `(b or 1, i)`.
    """
    keys = documents.shape[1]
    if documents.numel() == 0 or query_documents.numel() == 0:
        return lambda begin, end: (0, keys)
    batch = max(documents.shape[0], query_documents.shape[0])
    both = torch.cat([documents.expand(batch, -1), query_documents.expand(batch, -1)], 1)
    _, number = both.unique(return_inverse=True)
    # A number may stand in several rows of the batch, where it is another document.
    device = number.device
    number = number + torch.arange(batch, device=device).unsqueeze(1) * (int(number.max()) + 1)
    at = torch.arange(keys, device=device).expand(batch, -1).flatten()
    count, of_keys = int(number.max()) + 1, number[:, :keys].flatten()
    of_queries = number[:, keys:]
    first = at.new_full((count,), keys).scatter_reduce_(0, of_keys, at, "amin")[of_queries]
    stop = at.new_zeros(count).scatter_reduce_(0, of_keys, at + 1, "amax")[of_queries]
    without_document = both[:, keys:] < 0
    first = first.masked_fill(without_document, keys)
    stop = stop.masked_fill(without_document, 0)

    def visible_keys(begin: int, end: int) -> tuple[int, int]:
        first_key, stop_key = int(first[:, begin:end].min()), int(stop[:, begin:end].max())
        return (first_key, stop_key) if first_key < stop_key else (0, 0)

    return visible_keys


def hidden_by_documents(documents: Tensor, query_documents: Tensor, block: Block) -> Tensor:
    """`(b or 1, 1, m, n)`: True where query and key share no document.

    Args:
        documents: of the keys, `(b or 1, j)`.
        query_documents: of the queries, `(b or 1, i)`.
        block: some rows and columns.
    """
    of_keys, of_queries = (
        x[block.batch if x.shape[0] > 1 else slice(0, 1)] for x in (documents, query_documents)
    )
    queries, keys = of_queries[:, block.rows.begin : block.rows.end], of_keys[:, block.columns]
    different = queries.unsqueeze(2) != keys.unsqueeze(1)
    return (different | (keys < 0).unsqueeze(1)).unsqueeze(1)
