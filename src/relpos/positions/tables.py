"""What the learned schemes of Shaw, Huang and the bidirectional form share: tables over offsets."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..checks import check_count, check_dtype, check_flags, check_floating, check_queries
from ..terms import OffsetTable, Terms
from .base import Position
from .fsdp import copied_under_fsdp

__all__ = ["LearnedTables"]


class LearnedTables(Position):
    """Learned rows for the offsets `first..last`, given to attention as they are.

    Args:
        head_dim: width of one head.
        first: offset of row 0, in tokens.
        last: offset of the last row, in tokens.
        heads: 1, one table that all heads share, or one table for each query head.
        keys: whether there is a table with which the queries are dotted.
        values: whether there is a table added to the values.
        beyond: the row of an offset outside the table: the end row, or none (`"zero"`).
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: if a size is below 1.
    """

    shift_invariant: ClassVar[bool] = True
    keeps_content: ClassVar[bool] = True
    keys: nn.Parameter | None
    values: nn.Parameter | None

    def __init__(
        self,
        head_dim: int,
        first: int,
        last: int,
        *,
        heads: int,
        keys: bool = True,
        values: bool = False,
        beyond: Literal["clamp", "zero"] = "clamp",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.head_dim = check_count(name, "head_dim", head_dim)
        self.heads = check_count(name, "heads", heads)
        check_dtype(name, dtype)
        check_flags(name, keys=keys, values=values)
        self.first, self.last = first, last
        self.beyond: Literal["clamp", "zero"] = beyond
        self.reads_content = keys
        shape = (self.heads, last - first + 1, self.head_dim)
        for table, present in (("keys", keys), ("values", values)):
            rows = torch.empty(shape, device=device, dtype=dtype)
            self.register_parameter(table, nn.Parameter(rows) if present else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows from a normal distribution around 0 with variance `1 / head_dim`.

        A row then has length 1 on average, and for a query of unit variance the relative score is
        as large as `1 / sqrt(head_dim)` after scaling: the content decides at first.
        """
        for rows in self.parameters(recurse=False):
            nn.init.normal_(rows, std=self.head_dim**-0.5)

    def forward(
        self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b g j d"]
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` unchanged, and the tables.

        Args:
            q: queries.
            k: keys.

        Raises:
            ShapeError: if `q` or `k` has another width, or `q` another number of heads.
        """
        name = type(self).__name__
        check_queries(name, q, self.heads, width=self.head_dim)
        check_floating(name, "k", k, "b g j d", {"d": self.head_dim})
        return q, k, Terms(keys=self._table(self.keys), values=self._table(self.values))

    def head_axes(self) -> dict[str, int]:
        """Tables of each head."""
        return {} if self.heads == 1 else {name: 0 for name, _ in self.named_parameters()}

    def extra_repr(self) -> str:
        """Width, offsets and heads."""
        return f"head_dim={self.head_dim}, offsets={self.first}..{self.last}, heads={self.heads}"

    def _table(self, rows: Tensor | None) -> OffsetTable | None:
        if rows is None:
            return None
        return OffsetTable(copied_under_fsdp(self, rows), self.first, self.beyond)
