"""The window of offsets inside which tables change, and the sums that their end rows collect.

A table is constant beyond its ends: the nearest row ("clamp") or zeros ("zero"). So for all tables
of a call there is one window `low..high` of offsets: at or below `low`, and at or above `high`,
every table is constant. `csrc/offset_window.h` has the same window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from ..terms import OffsetTable

__all__ = ["OffsetWindow", "table_gradient"]


@dataclass(frozen=True)
class OffsetWindow:
    """Offsets `low..high`: at or below `low`, and at or above `high`, every table is constant."""

    low: int
    high: int

    @classmethod
    def of(cls, tables: Iterable[OffsetTable]) -> OffsetWindow | None:
        """The smallest window of all these tables; None without tables.

        >>> import torch
        >>> OffsetWindow.of([OffsetTable(torch.zeros(1, 5), -2, beyond="zero")])
        OffsetWindow(low=-3, high=3)
        """
        # Where a table is zero beyond its ends, the zeros next to them are part of it.
        edges = [
            (table.first - (table.beyond == "zero"), table.last + (table.beyond == "zero"))
            for table in tables
        ]
        if not edges:
            return None
        return cls(min(low for low, _ in edges), max(high for _, high in edges))

    def cut(self, first: int, last: int) -> OffsetWindow:
        """The part of it among the offsets `first..last`, at least one of them."""
        return OffsetWindow(*(min(max(edge, first), last) for edge in (self.low, self.high)))


def table_gradient(gradient: Tensor, table: OffsetTable, first: int) -> Tensor:
    """The gradient of `table.rows` from that of the rows at offsets `first, first + 1, ...`.

    The adjoint of `relpos.offsets.rows_at`: what flows to offsets before and after the table is
    summed into its end rows where it clamps, in a fixed order, and lost where it is zero.

    Args:
        gradient: `(h or 1, n[, d])`, one row for each offset from `first` on; where these are the
            table's own offsets it is returned itself.
        table: the table.
        first: offset of the gradient's row 0.

    >>> import torch
    >>> table_gradient(torch.ones(1, 6), OffsetTable(torch.zeros(1, 3), 0), first=-2)
    tensor([[3., 1., 2.]])
    """
    count = gradient.shape[1]
    before = min(max(table.first - first, 0), count)
    after = min(max(first + count - 1 - table.last, 0), count)
    inside = count - before - after
    if inside == table.rows.shape[1] == count:
        return gradient
    total = gradient.new_zeros(gradient.shape[0], *table.rows.shape[1:])
    if inside:
        begin = max(first - table.first, 0)
        total[:, begin : begin + inside] = gradient[:, before : before + inside]
    if table.beyond == "clamp" and before:
        total[:, 0] += gradient[:, :before].sum(1)
    if table.beyond == "clamp" and after:
        total[:, -1] += gradient[:, count - after :].sum(1)
    return total
