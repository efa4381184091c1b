"""Tables as the blocks read them: one row for each offset that some band meets."""

from __future__ import annotations

import torch
from torch import Tensor

from ...offsets import rows_at
from ...terms import OffsetTable
from .plan import Rows

__all__ = ["BandTable"]


class BandTable:
    """A table without ends: rows for every offset of every band, and its two far constants.

    Args:
        table: the table, any floating dtype.
        rows: the row blocks whose bands will be read.
        edges: the window `(low, high)` that all tables of the call share.
        dtype: in which to compute.
        learn: whether gradients will be collected.
    """

    def __init__(
        self,
        table: OffsetTable,
        rows: list[Rows],
        edges: tuple[int, int],
        dtype: torch.dtype,
        learn: bool = False,
    ) -> None:
        self._table = table
        banded = [some for some in rows if some.band]
        self._first = min((some.first_offset for some in banded), default=0)
        last = max((some.first_offset + some.met.stop - 1 for some in banded), default=0)
        self._rows = rows_at(table, self._first, last).to(dtype)
        self._far = [rows_at(table, edge, edge).to(dtype) for edge in edges]
        self._rows_grad = torch.zeros_like(self._rows) if learn else None
        self._far_grad = [torch.zeros_like(far) for far in self._far] if learn else []

    @property
    def learns(self) -> bool:
        """Whether gradients are collected."""
        return self._rows_grad is not None

    @property
    def per_head(self) -> bool:
        """Whether each query head has rows of its own."""
        return self._rows.shape[0] > 1

    def at(self, first: int, count: int, heads: slice) -> Tensor:
        """`(h or 1, count[, d])`: the rows of the offsets from `first` on, a view."""
        begin = first - self._first
        return self._rows[self._heads(heads), begin : begin + count]

    def band(self, rows: Rows, heads: slice) -> Tensor:
        """`(h or 1, w[, d])`: the rows of this block's band, a view."""
        return self.at(rows.first_offset, rows.met.stop, heads)

    def far(self, side: int, heads: slice) -> Tensor | None:
        """`(h or 1, 1[, d])`: the constant left (0) or right (1) of the window; None if zero."""
        if self._table.beyond == "zero":
            return None
        return self._far[side][self._heads(heads)]

    def add_at(self, first: int, heads: slice, grad: Tensor) -> None:
        """Collect the gradient `(h or 1, count[, d])` of `at`."""
        assert self._rows_grad is not None
        begin = first - self._first
        self._rows_grad[self._heads(heads), begin : begin + grad.shape[1]] += grad

    def add_band(self, rows: Rows, heads: slice, grad: Tensor) -> None:
        """Collect the gradient `(h or 1, w[, d])` of `band`."""
        self.add_at(rows.first_offset, heads, grad)

    def add_far(self, side: int, heads: slice, grad: Tensor) -> None:
        """Collect the gradient `(h or 1, 1[, d])` of `far`."""
        self._far_grad[side][self._heads(heads)] += grad

    def gradient(self) -> Tensor:
        """The gradient of the table's own rows: sums over runs of offsets, in a fixed order."""
        assert self._rows_grad is not None
        table, grad = self._table, self._rows_grad
        total = grad.new_zeros(table.rows.shape)
        count = table.rows.shape[1]
        skipped = table.first - self._first  # rows of `grad` before the table's first offset
        begin, end = max(skipped, 0), min(skipped + count, grad.shape[1])
        if begin < end:
            total[:, begin - skipped : end - skipped] += grad[:, begin:end]
        if table.beyond == "clamp":
            total[:, 0] += grad[:, : max(min(skipped, grad.shape[1]), 0)].sum(1)
            total[:, -1] += grad[:, max(skipped + count, 0) :].sum(1)
            total[:, :1] += self._far_grad[0]
            total[:, -1:] += self._far_grad[1]
        return total.to(table.rows.dtype)

    def _heads(self, heads: slice) -> slice:
        return heads if self.per_head else slice(0, 1)
