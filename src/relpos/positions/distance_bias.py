"""What biases that are a formula of the distance share: a row for each offset of the call."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ..checks import check_count, check_flags, check_floating
from ..offsets import call_offsets
from ..terms import OffsetTable, Terms
from .base import BiasPosition
from .starts import start_of_queries

__all__ = ["DistanceBias"]


class DistanceBias(BiasPosition):
    """`B = f(|j - i|)`, the same on either side of the query; subclasses give `at_distance`.

    Args:
        heads: query heads.
        causal: whether the table leaves out keys ahead of the query. Only right under a causal
            mask: a key ahead would be given the bias of offset 0.

    Raises:
        ValueError: if `heads` is below 1.
    """

    reads_query_start: ClassVar[bool] = True

    def __init__(self, heads: int, *, causal: bool) -> None:
        super().__init__()
        check_flags(type(self).__name__, causal=causal)
        self.heads = check_count(type(self).__name__, "heads", heads)
        self.causal = bool(causal)

    def at_distance(self, distance: Int64[Tensor, "r"]) -> Float[Tensor, "h r"]:
        """The bias, in logits, in float32 at least.

        Args:
            distance: in tokens, from 0 on.
        """
        raise NotImplementedError

    def table(self, i: int, j: int) -> OffsetTable:
        """One row for each offset that `i` queries, the last of `j` positions, have.

        Args:
            i: number of queries.
            j: number of keys.
        """
        return self._table(i, j, j - i, self._device())

    def forward(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b g j d"],
        *,
        query_start: int | None = None,
    ) -> tuple[Float[Tensor, "b h i d"], Float[Tensor, "b g j d"], Terms]:
        """`q` and `k` unchanged, and the bias in their dtype.

        Args:
            q: queries.
            k: keys.
            query_start: position of the first query; None means that the queries are the last.

        Raises:
            ShapeError: if `q` has another number of heads.
            ValueError: if `query_start` is no integer.
        """
        check_floating(type(self).__name__, "q", q, "b h i d", {"h": self.heads})
        check_floating(type(self).__name__, "k", k, "b g j d")
        i, j = q.shape[2], k.shape[2]
        start = start_of_queries(type(self).__name__, query_start, i, j)
        table = self._table(i, j, start, self._device() or q.device, q.dtype)
        return q, k, Terms(bias=table.map(lambda rows: rows.to(q.dtype)))

    def _device(self) -> torch.device | None:
        """Where the numbers of the formula are; None if it has none."""
        tensors = (*self.parameters(recurse=False), *self.buffers(recurse=False))
        return tensors[0].device if tensors else None

    def _table(
        self, i: int, j: int, start: int, device: torch.device | None,
        dtype: torch.dtype = torch.float32,
    ) -> OffsetTable:  # fmt: skip
        first, last = call_offsets(start, i, j, causal=self.causal)
        distance = torch.arange(first, last + 1, device=device).abs()
        return OffsetTable(self._rows(distance, dtype), first)

    def _rows(self, distance: Int64[Tensor, "r"], dtype: torch.dtype) -> Float[Tensor, "h r"]:
        """`at_distance`, for a call in this dtype."""
        return self.at_distance(distance)
