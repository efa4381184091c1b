"""Seeded inputs, and the judge's answer for them."""

from __future__ import annotations

import torch
from torch import Tensor

from relpos import definition

# Queries and keys: odd lengths, and fewer queries than keys.
LENGTHS = [(1, 1), (1, 33), (33, 33), (5, 65), (65, 65)]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def qkv(
    i: int, j: int, *, b: int = 2, h: int = 2, g: int | None = None, d: int = 5, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in float64."""
    g = h if g is None else g
    shapes = ((b, h, i, d), (b, g, j, d), (b, g, j, d))
    q, k, v = (normal(*shape, seed=seed + n) for n, shape in enumerate(shapes))
    return q, k, v


def table(rows: Tensor, first: int, beyond: str = "clamp") -> definition.Table:
    return definition.Table(rows.detach().numpy(), first, beyond)


def judged(q: Tensor, k: Tensor, v: Tensor, **arguments: object) -> Tensor:
    """The double loop's output for these tensors."""
    output, _ = definition.attention(
        q.detach().numpy(), k.detach().numpy(), v.detach().numpy(), **arguments
    )
    return torch.from_numpy(output)
