"""Attention with linear biases, ALiBi (Press et al. 2022): a slope per head, nothing learned.

    s_ij = scale * q_i . k_j - m_n |j - i|      head n = 1..h     Press et al. 2022, section 3

- Offset: key minus query. The paper is causal, so that `j <= i`; in both directions the bias is
  the same on either side.
- Slopes: `m_n = 2^(-8 n / h)` if the number of heads `h` is a power of two. Else
  those for the largest power of two `p` below, then every other one for `2 p`, from the first on
  (the authors' code).
- Rows: one per offset of the call, `i + j - 1`, or half as many with `causal=True`; computed.
- Scale: none on the bias.
- Beyond the table: nothing is; every offset has its own row, however long the sequence.
- Elsewhere: causal ports add `m_n j` instead, which differs by a constant in each row: the same
  weights, another log-sum-exp. Some order the slopes of 12 heads by size, some take the other
  half of the extra ones; weights trained with these need their slopes, not these.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..checks import check_dtype, check_flags
from ..terms import OffsetTable
from .angles import angle_dtype
from .distance_bias import DistanceBias

__all__ = ["Alibi"]


class Alibi(DistanceBias):
    """`-m_n |j - i|` of head `n`, with the slopes `m` of the paper.

    Args:
        heads: query heads.
        causal: whether the table leaves out keys ahead of the query. Only right under a causal
            mask: a key ahead would get the bias of offset 0.
        learned: whether the slopes are parameters (as `log2 m`), the paper's to begin with.
        device: of learned slopes.
        dtype: of learned slopes; `slopes` and `dense` are in it, in float32 at least.

    Raises:
        ValueError: if `heads` is below 1, or `dtype` not floating point of 16 bits at least.

    >>> Alibi(8).slopes[:3]
    tensor([0.5000, 0.2500, 0.1250])
    >>> Alibi(1).dense(2, 3) * 256
    tensor([[[-1.,  0., -1.],
             [-2., -1.,  0.]]])
    """

    log2_slopes: nn.Parameter | None

    def __init__(
        self,
        heads: int,
        *,
        causal: bool = False,
        learned: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(heads, causal=causal)
        check_flags("Alibi", learned=learned)
        check_dtype("Alibi", dtype)
        self._dtype = torch.promote_types(dtype or torch.float32, torch.float32)
        exponents = torch.empty(self.heads, device=device, dtype=dtype) if learned else None
        self.log2_slopes = None if exponents is None else nn.Parameter(exponents)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the slopes to the paper's."""
        if self.log2_slopes is not None:
            with torch.no_grad():
                self.log2_slopes.copy_(_exponents(self.heads, self.log2_slopes.device))

    @property
    def slopes(self) -> Float[Tensor, "h"]:
        """`m`, in float32 at least, in logits per token; on the CPU if they are not learned."""
        slopes = self._slopes(torch.device("cpu"))
        return slopes.to(self._dtype) if self.log2_slopes is None else slopes

    def table(self, i: int, j: int) -> OffsetTable:
        """One row for each offset that `i` queries, the last of `j` positions, have.

        Args:
            i: number of queries.
            j: number of keys.
        """
        table = super().table(i, j)
        if self.log2_slopes is not None:
            return table
        return table.map(lambda rows: rows.to(self._dtype))

    def at_distance(self, distance: Int64[Tensor, "r"]) -> Float[Tensor, "h r"]:
        """`-m distance`, in float64 (on MPS in float32) if the slopes are not learned.

        Args:
            distance: in tokens, from 0 on.
        """
        return self._slopes(distance.device)[:, None] * -distance

    def head_axes(self) -> dict[str, int] | None:
        """The slopes, if they are learned; fixed ones depend on how many heads there are."""
        return None if self.log2_slopes is None else {"log2_slopes": 0}

    def extra_repr(self) -> str:
        """Heads, direction, and whether the slopes are learned."""
        learned = "" if self.log2_slopes is None else ", learned=True"
        return f"heads={self.heads}, causal={self.causal}{learned}"

    def _slopes(self, device: torch.device) -> Tensor:
        # No buffer: what loads a model may not know of one that no state dict holds.
        if self.log2_slopes is None:
            return _exponents(self.heads, device).exp2()
        # The exponents, unlike the slopes, survive a cast to half precision unchanged.
        work = torch.promote_types(self.log2_slopes.dtype, torch.float32)
        return self.log2_slopes.to(work).exp2()


def _exponents(heads: int, device: torch.device) -> Float[Tensor, "h"]:
    """`log2` of the slopes; made where they are wanted, so that nobody waits for a copy."""
    dtype = angle_dtype(device)
    power = 1 << (heads.bit_length() - 1)
    even = torch.arange(1, power + 1, device=device, dtype=dtype) * (-8 / power)
    if heads == power:
        return even
    odd = torch.arange(1, 2 * (heads - power), 2, device=device, dtype=dtype)
    return torch.cat([even, odd * (-4 / power)])
