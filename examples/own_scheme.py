"""A position scheme of one's own: a learned decay with the logarithm of the distance, per head.

    B[j-i] = -softplus(a_h) * log(1 + |j - i|)

A scheme is a module called as `q, k, terms = position(q, k)`; here its terms are one table of
scalars, so it costs next to nothing at any length. docs/guide.md says what else a scheme may be.

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

    # Scores depend on offsets alone: the cache of a layer with a window may drop old keys.
    shift_invariant = True

    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.zeros(heads, 1))
        self.reach = reach

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Terms]:
        # Here and not in a buffer: one that no state dict holds is garbage after `to_empty()`.
        distance = torch.arange(-self.reach, self.reach + 1, device=q.device).abs()
        wide = torch.promote_types(q.dtype, torch.float32)  # in bfloat16 3000 is 3008
        rows = -softplus(self.strength) * distance.to(wide).log1p()
        return q, k, Terms(bias=OffsetTable(rows.to(q.dtype), first=-self.reach))


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
