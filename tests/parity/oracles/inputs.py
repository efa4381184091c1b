"""Seeded layer inputs, padding, and the heads' layout."""

from __future__ import annotations

import torch
from torch import Tensor

HEADS, WIDTH, BATCH = 3, 8, 2
MODEL = HEADS * WIDTH


def hidden(length: int, *, width: int = MODEL, batch: int = BATCH, seed: int = 7) -> Tensor:
    """A layer's input `(b, i, e)` that wants its gradient."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, width, generator=draw, dtype=torch.float64).requires_grad_()


def keep(length: int, *, padded: bool, batch: int = BATCH) -> Tensor:
    """`(b, j)`, True at a real token: the first text is whole, the others end early."""
    ends = torch.full((batch,), length)
    if padded:
        ends[1:] = length - length // 3
    return torch.arange(length) < ends[:, None]


def additive(mask: Tensor) -> Tensor:
    """0 where `mask` is True, minus infinity elsewhere."""
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)


def split(x: Tensor, heads: int = HEADS) -> Tensor:
    """`(b, i, h * d)` to `(b, h, i, d)`."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """`(b, h, i, d)` to `(b, i, h * d)`."""
    return x.transpose(1, 2).flatten(2)
