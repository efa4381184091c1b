"""All tables of a call over one window of offsets, so that kernels know a single one.

Inside the window each offset has a row of its own; at its ends and beyond, every table is constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...terms import OffsetTable

__all__ = ["Window", "shared_window"]


@dataclass(frozen=True)
class Window:
    """Offsets `first .. first + rows - 1`.

    Args:
        first: in tokens.
        rows: how many; two at least, so that the end rows differ.
    """

    first: int
    rows: int

    def stretched(self, table: OffsetTable) -> Tensor:
        """`(h or 1, rows[, d])`, contiguous: what each offset of the window meets."""
        before, inner, after = self._parts(table)
        rows = table.rows
        ends = rows[:, :1], rows[:, -1:]
        if table.beyond == "zero":
            ends = torch.zeros_like(ends[0]), torch.zeros_like(ends[1])
        first, last = (
            end.expand(-1, count, *rows.shape[2:])
            for end, count in zip(ends, (before, after), strict=True)
        )
        return torch.cat([first, rows[:, inner], last], 1)

    def gathered(self, gradient: Tensor, table: OffsetTable) -> Tensor:
        """The gradient of `table.rows` from that of `stretched(table)`; the adjoint."""
        before, inner, after = self._parts(table)
        rows = gradient.new_zeros(gradient.shape[0], *table.rows.shape[1:])
        rows[:, inner] = gradient[:, before : self.rows - after]
        if table.beyond == "clamp":
            rows[:, 0] += gradient[:, :before].sum(1)
            rows[:, -1] += gradient[:, self.rows - after :].sum(1)
        return rows

    def _parts(self, table: OffsetTable) -> tuple[int, slice, int]:
        """How many offsets lie before the table, its rows in the window, and how many after."""
        before = min(max(table.first - self.first, 0), self.rows)
        after = min(max(self.first + self.rows - 1 - table.last, 0), self.rows)
        begin = max(self.first - table.first, 0)
        return before, slice(begin, begin + self.rows - before - after), after


def shared_window(
    tables: Iterable[OffsetTable], start: int, queries: int, keys: int, *, causal: bool
) -> Window | None:
    """The smallest window beyond which no table changes at any offset of the call; None: no table.

    Args:
        tables: of the call.
        start: position of the first query.
        queries: tokens.
        keys: tokens.
        causal: whether keys ahead are hidden; then rows for them are not read either.
    """
    edges = [
        (table.first - (table.beyond == "zero"), table.last + (table.beyond == "zero"))
        for table in tables
    ]
    if not edges:
        return None
    least, most = -(start + queries - 1), keys - 1 - start  # the offsets that there are
    if causal:
        most = min(most, 0)
        least = min(least, most)
    first, last = min(low for low, _ in edges), max(high for _, high in edges)
    first, last = min(max(first, least), most), min(max(last, least), most)
    first = min(first, last - 1)
    return Window(first, last - first + 1)
