"""Sandwich (Chi et al. 2023): the inner product of two sinusoidal positions as a bias.

    s_ij = scale * q_i . k_j + (p_i . p_j - e / 2) / (8 n / h)
    p_i . p_j = sum_c cos((j - i) / 10000^(2c/e)),  c = 0..e/2-1        head n = 1..h

- Source: Chi et al. 2023, section 5. `p` are the sinusoids of Vaswani et al. (2017) of width `e`,
  here `dim`, whatever the model's width; nothing is learned.
- Offset: the distance alone, as a cosine is even. The paper is causal; in both directions the bias
  is the same on either side.
- `8 n / h` is the compression of head `n`: the first head fades fastest. `- e / 2` makes the bias 0
  at offset 0; a constant of a head changes no weight, only the log-sum-exp.
- Rows: one per offset of the call, `i + j - 1`, or half as many with `causal=True`; computed from
  angles in float64.
- Scale: none on the bias.
- Beyond the table: nothing is; every offset has its own row, however long the sequence.
- Elsewhere: NeMo's `SandwichRelativePositionEmbedding` has the sum of cosines, `- e / 2` and the
  division by `8 n / h` of this file, but counts `c = 1..e/2`, so that its fastest wave is
  `10000^(-2/e)` and not 1. Its earlier `sandwich_pos_bias` takes no cosine and is linear in the
  offset. The paper's figure 1 has the same `n 8 / h` for ALiBi's exponents. The width of 128 is the
  paper's alone: no code was found that has it too.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..checks import check_count
from .angles import angles_at, frequencies, less_whole_turns
from .distance_bias import DistanceBias

__all__ = ["Sandwich"]


class Sandwich(DistanceBias):
    """`(sum_c cos((j - i) w_c) - dim / 2) * heads / (8 n)`, nothing learned.

    Args:
        heads: query heads.
        dim: width of the sinusoids, even; the paper's choice is 128.
        causal: whether the table leaves out keys ahead of the query. Only right under a causal
            mask: a key ahead would be given the bias of offset 0.

    Raises:
        ValueError: if `heads` is below 1, or `dim` no even number above 0.

    >>> Sandwich(2, dim=2).dense(1, 3).flatten(1)
    tensor([[-0.3540, -0.1149,  0.0000],
            [-0.1770, -0.0575,  0.0000]])
    """

    def __init__(self, heads: int, dim: int = 128, *, causal: bool = False) -> None:
        super().__init__(heads, causal=causal)
        self.dim = check_count("Sandwich", "dim", dim)
        if self.dim % 2:
            raise ValueError(f"Sandwich: dim must be even, got {dim}")

    def at_distance(self, distance: Int64[Tensor, "r"]) -> Float[Tensor, "h r"]:
        """The bias of every head, in logits, in float32.

        Args:
            distance: in tokens, from 0 on.
        """
        return self._rows(distance, torch.float32)

    def _rows(self, distance: Int64[Tensor, "r"], dtype: torch.dtype) -> Float[Tensor, "h r"]:
        """The bias in float32, or in float64 for a call in that."""
        angles = angles_at(distance, frequencies(10000.0, self.dim, device=distance.device))
        angles = less_whole_turns(angles, torch.promote_types(dtype, torch.float32))
        # cos x - 1, without the digits that this difference loses where x is small.
        product = -2 * (angles / 2).sin().square().sum(1)
        heads = torch.arange(1, self.heads + 1, device=distance.device, dtype=product.dtype)
        return product * (self.heads / (8.0 * heads))[:, None]

    def extra_repr(self) -> str:
        """Heads, width and direction."""
        return f"heads={self.heads}, dim={self.dim}, causal={self.causal}"
