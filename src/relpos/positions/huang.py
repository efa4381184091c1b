"""Relative global attention of Huang et al. (2018, "Music Transformer"): causal, unclipped.

    s_ij = scale * (q_i . k_j + q_i . E[j - i])      for j <= i       Huang et al. 2018, eq. 3

- Source: Huang et al. 2018, eq. 3, unclipped as in section 3.4.
- Offset: key minus query; row `n` belongs to offset `n - (max_length - 1)`, the last row to 0.
- Rows: `max_length`, for the offsets `-(max_length - 1)..0`.
- Scale: `1 / sqrt(d)` on both terms, as in the paper's equation.
- Beyond the table: further back clamps to the first row; the common implementations fail or read
  wrong rows there. Keys ahead of the query, which a causal mask should hide, get the row of 0.
- Elsewhere: the table is called `Er` `(max_length, d)`, with the last row for offset 0 as here, so
  `Er` is `keys[0]`. Its skew holds other
  queries' numbers above the diagonal, so without a causal mask those implementations are wrong.
"""

from __future__ import annotations

import torch

from ..checks import check_count
from .tables import LearnedTables

__all__ = ["Huang"]


class Huang(LearnedTables):
    """`K` with one row for each offset `-(max_length - 1)..0`; for causal attention.

    Args:
        head_dim: width of one head.
        max_length: longest sequence, in tokens, in which every offset has a row of its own.
        heads: 1, one table that all heads share, or one for each query head.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1.

    >>> tuple(Huang(32, max_length=512).keys.shape)
    (1, 512, 32)
    """

    def __init__(
        self,
        head_dim: int,
        max_length: int,
        heads: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        first = 1 - check_count("Huang", "max_length", max_length)
        super().__init__(head_dim, first, 0, heads=heads, device=device, dtype=dtype)
