"""What people run today, each written from its formula: rivals of the op in the benchmark.

All take `q, k, v (b, h, l, d)` and tables `(rows, d)` shared by the heads, and build tensors of
size `l x l` (the literal Shaw: `l x l x d`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

__all__ = [
    "FORWARD_ONLY",
    "decomposed_bias",
    "dense_bias",
    "eager_skew",
    "flex",
    "gathered_queries",
    "literal_shaw",
    "masked_documents",
    "pad_and_reshape",
    "plain",
]

# Contenders without a backward on the CPU.
FORWARD_ONLY = ("FlexAttention",)


def plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Torch's SDPA without positions: the unit of every ratio."""
    return scaled_dot_product_attention(q, k, v, is_causal=causal)


def _clipped_index(length: int, distance: int) -> Tensor:
    at = torch.arange(length)
    return (at[None, :] - at[:, None]).clamp(-distance, distance) + distance


def literal_shaw(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Shaw et al. (2018), eq. 3-4, as written: a vector for each pair, `l x l x d`, twice."""
    index = _clipped_index(q.shape[2], keys.shape[0] // 2)
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, keys[index])
    weights = (scores / sqrt(q.shape[3])).softmax(-1)
    return weights @ v + torch.einsum("bhij,ijd->bhid", weights, values[index])


def eager_skew(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """Huang et al. (2018), section 3.4.1: pad, reshape, slice; causal (seed 000)."""
    length = q.shape[2]
    padded = pad(q @ rows.mT, (1, 0))
    skewed = padded.reshape(*q.shape[:2], length + 1, length)[:, :, 1:]
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = ((q @ k.mT + skewed) / sqrt(q.shape[3])).masked_fill(ahead, -torch.inf)
    return scores.softmax(-1) @ v


def _by_key(x: Tensor) -> Tensor:
    """Scores `(b, h, l, 2l - 1)` by offset as `(b, h, l, l)` by key, by padding and reshaping."""
    b, h, length, width = x.shape
    flat = pad(x, (0, 1)).flatten(2)
    padded = pad(flat, (0, length - 1))
    return padded.reshape(b, h, length + 1, width)[:, :, :length, length - 1 :]


def pad_and_reshape(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """Bidirectional relative keys, `2l - 1` rows (seed 002; Bottleneck Transformers)."""
    scores = (q @ k.mT + _by_key(q @ rows.mT)) / sqrt(q.shape[3])
    return scores.softmax(-1) @ v


def dense_bias(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """The same scores handed to SDPA as a float mask."""
    bias = _by_key(q @ rows.mT) / sqrt(q.shape[3])
    return scaled_dot_product_attention(q, k, v, attn_mask=bias)


def gathered_queries(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    """A table that meets the keys, gathered from `k Q^T` (He et al. 2021, as DeBERTa's code)."""
    index = _clipped_index(q.shape[2], rows.shape[0] // 2)
    met = (k @ rows.mT).gather(-1, index.mT.expand(*k.shape[:2], -1, -1)).mT
    return ((q @ k.mT + met) / sqrt(q.shape[3])).softmax(-1) @ v


def decomposed_bias(q: Tensor, k: Tensor, v: Tensor, *tables: Tensor) -> Tensor:
    """Rows and columns of a map (Li et al. 2022), added up to one dense bias for SDPA."""
    height, width = (table.shape[0] // 2 + 1 for table in tables)
    on_map = q.unflatten(2, (height, width)) / sqrt(q.shape[3])
    rows, columns = (
        table[_clipped_index(table.shape[0] // 2 + 1, table.shape[0] // 2)] for table in tables
    )
    up = torch.einsum("bhyxd,ykd->bhyxk", on_map, rows)
    along = torch.einsum("bhyxd,xkd->bhyxk", on_map, columns)
    bias = (up.unsqueeze(-1) + along.unsqueeze(-2)).flatten(4).flatten(2, 3)
    return scaled_dot_product_attention(q, k, v, attn_mask=bias)


def masked_documents(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, documents: Tensor) -> Tensor:
    """Packed documents kept apart by a dense mask, with the clipped bias in it, for SDPA."""
    bias = rows[:, _clipped_index(q.shape[2], rows.shape[1] // 2)]
    apart = documents[:, :, None] != documents[:, None, :]
    return scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(apart, -torch.inf))


def flex() -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Compiled FlexAttention whose score function reads `q rows^T`; forward only on the CPU."""
    compiled: Callable[..., Tensor] | None = None

    def attention(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        nonlocal compiled
        if compiled is None:  # only when it is run: its imports would count as memory
            from torch.nn.attention.flex_attention import flex_attention

            compiled = torch.compile(flex_attention, dynamic=False)
        q, k, v, rows = (x.detach() for x in (q, k, v, rows))
        distance = rows.shape[0] // 2
        relative = q @ rows.mT / sqrt(q.shape[3])

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + relative[b, h, i, (j - i).clamp(-distance, distance) + distance]

        return compiled(q, k, v, score_mod=score)

    return attention
