"""Neighbourhoods of maps with learned biases in the benchmark, and what else computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from relpos import GridTerms, neighborhood_ranges

from .flex import flex_bias
from .settings import Setting
from .workload import Workload

__all__ = ["DENSE_BIAS", "MAPS", "Map", "map_workload"]

DENSE_BIAS = "SDPA with a dense bias"


@dataclass(frozen=True)
class Map:
    """A map whose tokens each see as many around them, moved inward at its edges.

    Args:
        grid: height and width, in tokens.
        size: of a neighbourhood, along either axis.
        batch: maps.
        heads: of the attention.
        width: of a head.
    """

    grid: tuple[int, int]
    size: int
    batch: int
    heads: int
    width: int

    @property
    def share(self) -> float:
        """Of all pairs, those that take part."""
        return self.size**2 / prod(self.grid)

    @property
    def setting(self) -> Setting:
        """Its sizes as the benchmark has them."""
        return Setting(
            "map", prod(self.grid), (), batch=self.batch, heads=self.heads, width=self.width,
            backends=("native",), rivals=True,
        )  # fmt: skip


# The first two stages of NAT and DiNAT (Hassani et al. 2023) at 224 x 224 pixels; larger maps.
MAPS = {
    "7 x 7 of 56 x 56": Map((56, 56), 7, batch=8, heads=2, width=32),
    "7 x 7 of 28 x 28": Map((28, 28), 7, batch=8, heads=4, width=32),
    "13 x 13 of 64 x 64": Map((64, 64), 13, batch=1, heads=8, width=64),
    "7 x 7 of 128 x 128": Map((128, 128), 7, batch=1, heads=2, width=32),
}


def map_workload(of: Map) -> Workload:
    """A map's attention; the same numbers each time."""
    generator = torch.Generator().manual_seed(1)
    biases = torch.randn(of.heads, 2 * of.size - 1, 2 * of.size - 1, generator=generator)
    biases.requires_grad_()
    more = [n - of.size for n in of.grid[::-1] for _ in range(2)]
    return Workload(
        lambda q, k: GridTerms(of.grid, joint_bias=pad(biases.to(q.dtype), more)),
        (biases,),
        local={"key_ranges": [neighborhood_ranges(n, of.size) for n in of.grid]},
        rivals={"FlexAttention": _flex(of, biases), DENSE_BIAS: _dense(of, biases)},
    )


def _first(at: Tensor, length: int, size: int) -> Tensor:
    """Where the neighbourhood of a coordinate begins."""
    return (at - size // 2).clamp(0, length - size)


def _pair(of: Map, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """Whether key `j` is in the neighbourhood of query `i`, and the number of the pair's bias."""
    line, inside, entry = of.grid[1], None, None
    for at, key, length in ((i // line, j // line, of.grid[0]), (i % line, j % line, line)):
        past = key - _first(at, length, of.size)
        here = (past >= 0) & (past < of.size)
        row = (key - at).clamp(1 - of.size, of.size - 1) + of.size - 1
        inside = here if inside is None else inside & here
        entry = row if entry is None else entry * (2 * of.size - 1) + row
    assert inside is not None
    assert entry is not None
    return inside, entry


def _flex(of: Map, biases: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    run = flex_bias(
        allows=lambda b, h, i, j: _pair(of, i, j)[0], entry=lambda i, j: _pair(of, i, j)[1]
    )
    return lambda q, k, v: run(q, k, v, biases.flatten(1).to(q.dtype))


def _dense(of: Map, biases: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The biases of all pairs, `l x l` for each head, -inf where a pair takes no part."""
    tokens = torch.arange(prod(of.grid))
    inside, entry = _pair(of, tokens[:, None], tokens)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dense = biases.flatten(1).to(q.dtype)[:, entry].masked_fill(~inside, -torch.inf)
        return scaled_dot_product_attention(q, k, v, attn_mask=dense)

    return attention
