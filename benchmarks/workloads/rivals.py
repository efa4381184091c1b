"""What people run today, each written from its formula: rivals of the op in the benchmark.

All take `q, k, v (b, h, l, d)` and tables `(rows, d)` shared by the heads, and build tensors of
size `l x l` (the literal Shaw: `l x l x d`).
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

__all__ = [
    "FORWARD_ONLY",
    "dense_clipped_key_scores",
    "dense_decomposed_scores",
    "dense_key_scores",
    "dense_scalar_bias",
    "eager_skew",
    "gathered_queries",
    "literal_shaw",
    "masked_documents",
    "pad_and_reshape",
    "plain",
]

# Contenders without a backward on the CPU.
FORWARD_ONLY = ("FlexAttention",)
_MAX_BYTES = 20e9  # of a tensor of size l x l x d


def plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Torch's SDPA without positions: the unit of every ratio."""
    return scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def _clipped_index(length: int, distance: int, device: torch.device) -> Tensor:
    position = torch.arange(length, device=device)
    return (position[None, :] - position[:, None]).clamp(-distance, distance) + distance


def literal_shaw(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Shaw et al. (2018), eq. 3-4, as written: a vector for each pair, `l x l x d`, twice."""
    size = q.shape[2] ** 2 * q.shape[3] * q.element_size()
    if size > _MAX_BYTES:
        raise MemoryError(f"its tensor of size L x L x d would take {size / 1e9:.0f} GB")
    index = _clipped_index(q.shape[2], keys.shape[0] // 2, q.device)
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, keys[index])
    weights = (scores / sqrt(q.shape[3])).softmax(-1)
    return weights @ v + torch.einsum("bhij,ijd->bhid", weights, values[index])


def eager_skew(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """Huang et al. (2018), section 3.4.1: pad, reshape, slice; causal."""
    length = q.shape[2]
    padded = pad(q @ rows.mT, (1, 0))
    skewed = padded.reshape(*q.shape[:2], length + 1, length)[:, :, 1:]
    ahead = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = ((q @ k.mT + skewed) / sqrt(q.shape[3])).masked_fill(ahead, -torch.inf)
    return scores.softmax(-1) @ v


def _relative_to_absolute(x: Tensor) -> Tensor:
    """Scores `(b, h, l, 2l - 1)` by offset as `(b, h, l, l)` by key, by padding and reshaping."""
    b, h, length, width = x.shape
    flat = pad(x, (0, 1)).flatten(2)
    padded = pad(flat, (0, length - 1))
    return padded.reshape(b, h, length + 1, width)[:, :, :length, length - 1 :]


def pad_and_reshape(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """Relative keys in both directions, `2l - 1` rows (Srinivas et al. 2021, BoTNet)."""
    scores = (q @ k.mT + _relative_to_absolute(q @ rows.mT)) / sqrt(q.shape[3])
    return scores.softmax(-1) @ v


def dense_key_scores(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """The same scores handed to SDPA as a float mask."""
    bias = _relative_to_absolute(q @ rows.mT) / sqrt(q.shape[3])
    return scaled_dot_product_attention(q, k, v, attn_mask=bias)


def dense_clipped_key_scores(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """Shaw's keys gathered from `q K^T` into a float mask for SDPA."""
    index = _clipped_index(q.shape[2], rows.shape[0] // 2, q.device)
    bias = (q @ rows.mT).gather(-1, index.expand(*q.shape[:2], -1, -1)) / sqrt(q.shape[3])
    return scaled_dot_product_attention(q, k, v, attn_mask=bias)


def dense_scalar_bias(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """A clipped bias `(h, rows)` unrolled into a float mask for SDPA (T5 as it is published)."""
    bias = rows[None, :, _clipped_index(q.shape[2], rows.shape[1] // 2, q.device)]
    return scaled_dot_product_attention(q, k, v, attn_mask=bias)


def gathered_queries(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """Keys dotted with a table, gathered from `k Q^T` (He et al. 2021, as DeBERTa's code)."""
    index = _clipped_index(q.shape[2], rows.shape[0] // 2, q.device)
    scores = (k @ rows.mT).gather(-1, index.mT.expand(*k.shape[:2], -1, -1)).mT
    return ((q @ k.mT + scores) / sqrt(q.shape[3])).softmax(-1) @ v


def dense_decomposed_scores(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
    """Rows and columns of a map (Li et al. 2022), added up to one dense bias for SDPA."""
    height, width = (table.shape[0] // 2 + 1 for table in tables)
    on_grid = q.unflatten(2, (height, width)) / sqrt(q.shape[3])
    rows, columns = (
        table[_clipped_index(table.shape[0] // 2 + 1, table.shape[0] // 2, q.device)]
        for table in tables
    )
    up = torch.einsum("bhyxd,ykd->bhyxk", on_grid, rows)
    along = torch.einsum("bhyxd,xkd->bhyxk", on_grid, columns)
    bias = (up.unsqueeze(-1) + along.unsqueeze(-2)).flatten(4).flatten(2, 3)
    return scaled_dot_product_attention(q, k, v, attn_mask=bias)


def masked_documents(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, documents: Tensor) -> Tensor:
    """Packed documents kept apart by a dense mask, with the clipped bias in it, for SDPA."""
    bias = rows[:, _clipped_index(q.shape[2], rows.shape[1] // 2, q.device)]
    apart = documents[:, :, None] != documents[:, None, :]
    return scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(apart, -torch.inf))
