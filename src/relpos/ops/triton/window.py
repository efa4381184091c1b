"""All tables of a call over one window of offsets, so that kernels know a single one.

Inside the window each offset has a row of its own; at its ends and beyond, every table is constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from ...offsets import rows_at
from ...terms import OffsetTable
from ..windows import OffsetWindow, call_offsets, table_gradient

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
        """`(h or 1, rows[, d])`, contiguous: the row of each offset of the window."""
        return rows_at(table, self.first, self.first + self.rows - 1).contiguous()

    def gathered(self, gradient: Tensor, table: OffsetTable) -> Tensor:
        """The gradient of `table.rows` from that of `stretched(table)`; the adjoint."""
        return table_gradient(gradient, table, self.first)


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
    window = OffsetWindow.of(tables)
    if window is None:
        return None
    window = window.cut(*call_offsets(start, queries, keys, causal=causal))
    first = min(window.low, window.high - 1)
    return Window(first, window.high - first + 1)
