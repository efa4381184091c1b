"""Tables as the blocks read them: one row for each offset that is in some band."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...offsets import rows_at
from ...terms import OffsetTable
from ..offset_window import OffsetWindow, table_gradient
from .plan import RowBlock

__all__ = ["BandTable"]


class BandTable:
    """A table without ends: rows for every offset of every band, and its two far constants.

    Args:
        table: the table, any floating dtype.
        rows: the row blocks whose bands will be read.
        window: that all tables of the call share.
        offsets: the first and the last that pairs have, to which `window` is cut: rows of others
            are zeros. None: not known.
        dtype: in which to compute.
        learn: whether gradients will be collected.
    """

    def __init__(
        self,
        table: OffsetTable,
        rows: list[RowBlock],
        window: OffsetWindow,
        offsets: tuple[int, int] | None,
        dtype: torch.dtype,
        learn: bool = False,
    ) -> None:
        self._table = table
        banded = [block for block in rows if block.band]
        self._first = min((block.first_offset for block in banded), default=0)
        last = max((block.first_offset + block.visible.stop - 1 for block in banded), default=0)
        self._rows = _rows_within(table, self._first, last, offsets).to(dtype)
        self._edges = window.low, window.high
        self._far = [rows_at(table, edge, edge).to(dtype) for edge in self._edges]
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

    def band(self, rows: RowBlock, heads: slice) -> Tensor:
        """`(h or 1, w[, d])`: the rows of this block's band, a view."""
        return self.at(rows.first_offset, rows.visible.stop, heads)

    def far(self, side: int, heads: slice) -> Tensor | None:
        """`(h or 1, 1[, d])`: the constant left (0) or right (1) of the window; None if zero."""
        table = self._table
        if table.beyond == "zero" and not table.first <= self._edges[side] <= table.last:
            return None
        return self._far[side][self._heads(heads)]

    def add_at(self, first: int, heads: slice, grad: Tensor) -> None:
        """Collect the gradient `(h or 1, count[, d])` of `at`."""
        assert self._rows_grad is not None
        begin = first - self._first
        self._rows_grad[self._heads(heads), begin : begin + grad.shape[1]] += grad

    def add_band(self, rows: RowBlock, heads: slice, grad: Tensor) -> None:
        """Collect the gradient `(h or 1, w[, d])` of `band`."""
        self.add_at(rows.first_offset, heads, grad)

    def add_far(self, side: int, heads: slice, grad: Tensor) -> None:
        """Collect the gradient `(h or 1, 1[, d])` of `far`."""
        self._far_grad[side][self._heads(heads)] += grad

    def gradient(self) -> Tensor:
        """The gradient of the table's own rows."""
        assert self._rows_grad is not None
        total = table_gradient(self._rows_grad, self._table, self._first)
        for edge, grad in zip(self._edges, self._far_grad, strict=True):
            total = total + table_gradient(grad, self._table, edge)
        return total

    def _heads(self, heads: slice) -> slice:
        return heads if self.per_head else slice(0, 1)


def _rows_within(
    table: OffsetTable, first: int, last: int, offsets: tuple[int, int] | None
) -> Tensor:
    """The rows of the offsets `first..last`, zeros outside `offsets`."""
    if offsets is None:
        return rows_at(table, first, last)
    low = min(max(first, offsets[0]), last)
    high = max(min(last, offsets[1]), low)
    rows = rows_at(table, low, high)
    margins = (0, 0) * (rows.ndim - 2) + (low - first, last - high)
    return pad(rows, margins) if any(margins) else rows
