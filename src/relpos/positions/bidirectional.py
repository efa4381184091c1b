"""Relative keys in both directions, one row per offset: the `2L - 1` form.

    s_ij = scale * (q_i . k_j + q_i . K[j - i])

- Source: Shaw et al. 2018, eq. 4, without clipping; Bottleneck Transformers (Srinivas et al. 2021,
  section 3 and figure 4) along one axis; AI Summer's `RelPosEmb1D`. Huang's skew does not cover it.
- Offset: key minus query; row `n` belongs to offset `n - (max_length - 1)`.
- Rows: `2 * max_length - 1`, for the offsets `-(max_length - 1)..max_length - 1`.
- Scale: `1 / sqrt(d)` on both terms. AI Summer's and timm's default leave the position unscaled:
  divide their rows by the scale.
- Beyond the table: clamps to the end rows; `2L - 1` forms elsewhere need the exact length.
- Elsewhere: AI Summer's `RelPosEmb1D(heads=n)` never builds its per-head tables; here it does.
"""

from __future__ import annotations

import torch

from ..checks import check_count
from .tables import LearnedTables

__all__ = ["Bidirectional"]


class Bidirectional(LearnedTables):
    """`K` with one row for each offset `-(max_length - 1)..max_length - 1`.

    Args:
        head_dim: width of one head.
        max_length: longest sequence, in tokens, in which every offset has a row of its own.
        heads: 1, one table that all heads share, or one for each query head.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1.

    >>> tuple(Bidirectional(32, max_length=5).keys.shape)
    (1, 9, 32)
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
        last = check_count("Bidirectional", "max_length", max_length) - 1
        super().__init__(head_dim, -last, last, heads=heads, device=device, dtype=dtype)
