"""A position scheme of one's own: a learned decay with the logarithm of the distance, per head.

    B[j-i] = -softplus(a_h) * log(1 + |j - i|)

A scheme is a module called as `q, k, terms = position(q, k)`; here its terms are one table of
scalars, so it costs next to nothing at any length.

    python examples/own_scheme.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from relpos import OffsetTable, Terms
from relpos.layers import MultiheadAttention


class LogDecay(nn.Module):
    """`-softplus(a_h) * log(1 + |j - i|)` in logits, the same beyond `reach` tokens."""

    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.zeros(heads, 1))
        distance = torch.arange(-reach, reach + 1).abs()
        self.register_buffer("log_distance", distance.float().log1p(), persistent=False)
        self.reach = reach

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Terms]:
        rows = -softplus(self.strength) * self.log_distance
        return q, k, Terms(bias=OffsetTable(rows, first=-self.reach))


def main() -> None:
    torch.manual_seed(0)
    layer = MultiheadAttention(64, 4, position=LogDecay(heads=4, reach=256))
    x = torch.randn(2, 1000, 64)
    y, _ = layer(x, x, x, is_causal=True, need_weights=False)
    y.square().mean().backward()
    print(f"output {tuple(y.shape)}, gradient of the strengths:")
    print(layer.position.strength.grad.squeeze())


if __name__ == "__main__":
    main()
