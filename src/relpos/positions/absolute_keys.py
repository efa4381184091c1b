"""Absolute positions with which the queries are dotted inside attention, added to the keys.

    s_ij = scale * q_i . (k_j + R_j)

- Source: AI Summer, "How Positional Embeddings work in Self-Attention" (`AbsPosEmb1D`), where it is
  written `softmax((Q K^T + Q R) / sqrt(d))`. The term depends on the query's content and on the
  key's position, not on the offset, and costs one addition to the keys: there are no tables.
- Position: the keys are the positions `0..j-1`, also where there are fewer queries (a cache). They
  count along the row: a text behind left padding, or a later one of several packed into a row
  (`documents=`), has the rows of where it stands there and is not as it would be alone.
- Rows: `max_length`, which all heads share.
- Scale: `1 / sqrt(d)` on both terms, as in that equation; `AbsPosEmb1D` has the unscaled form.
- Beyond the table: the last row repeats; the original needs the exact length.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_floating, check_like_parameter
from ..terms import Terms
from .absolute import position_rows
from .base import Position

__all__ = ["AbsoluteKeys"]


class AbsoluteKeys(Position):
    """`q_i . R_j` beside the content score, as keys `k_j + R_j`.

    Args:
        head_dim: width of one head.
        max_length: number of rows, in tokens.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1.

    >>> q = k = torch.zeros(1, 2, 7, 4)
    >>> _, k, terms = AbsoluteKeys(4, max_length=5)(q, k)
    >>> bool((k[0, 0, 4] == k[0, 0, 6]).all()), terms.tables
    (True, {})
    """

    reads_key_start: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        max_length: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = check_count("AbsoluteKeys", "head_dim", head_dim)
        self.max_length = check_count("AbsoluteKeys", "max_length", max_length)
        check_dtype("AbsoluteKeys", dtype)
        shape = (self.max_length, self.head_dim)
        self.rows = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows from a normal distribution around 0 with variance `1 / head_dim`."""
        nn.init.normal_(self.rows, std=self.head_dim**-0.5)

    def forward(
        self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b g j d"], *, key_start: int = 0
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` unchanged, `k + R`, and no terms.

        Args:
            q: queries.
            k: keys.
            key_start: position of the first key.

        Raises:
            ShapeError: if `k` has another width, dtype or device.
            ValueError: if `key_start` is no integer or negative.
        """
        check_floating("AbsoluteKeys", "q", q, "b h i d")
        check_like_parameter("AbsoluteKeys", "k", k, self.rows, "b g j d", {"d": self.head_dim})
        key_start = check_count("AbsoluteKeys", "key_start", key_start, least=0)
        return q, k + position_rows(self.rows, k.shape[2], start=key_start), Terms()

    def head_axes(self) -> dict[str, int]:
        """No parameter differs from head to head."""
        return {}

    def extra_repr(self) -> str:
        """Width and rows."""
        return f"head_dim={self.head_dim}, max_length={self.max_length}"
