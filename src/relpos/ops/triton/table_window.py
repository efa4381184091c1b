"""All tables of a call over one window of offsets, so that kernels know a single one.

Inside the window each offset has a row of its own; at its ends and beyond, every table is constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from ...offsets import call_offsets, rows_at
from ...terms import OffsetTable
from ..locality import Window
from ..offset_window import OffsetWindow, table_gradient

__all__ = ["TableWindow", "shared_table_window"]


@dataclass(frozen=True)
class TableWindow:
    """Offsets `first .. first + num_rows - 1`.

    Args:
        first: in tokens.
        num_rows: how many; two at least, so that the end rows differ.
    """

    first: int
    num_rows: int

    def expand(self, table: OffsetTable) -> Tensor:
        """`(h or 1, num_rows[, d])`, contiguous: the row of each offset of the window."""
        return rows_at(table, self.first, self.first + self.num_rows - 1).contiguous()

    def expand_backward(self, gradient: Tensor, table: OffsetTable) -> Tensor:
        """The gradient of `table.rows` from that of `expand(table)`; the adjoint."""
        return table_gradient(gradient, table, self.first)


def shared_table_window(
    tables: Iterable[OffsetTable],
    query_start: int,
    queries: int,
    keys: int,
    *,
    causal: bool,
    window: Window = (None, None),
) -> TableWindow | None:
    """The smallest window beyond which no table changes at any offset of the call; None: no table.

    Args:
        tables: of the call.
        query_start: position of the first query, in tokens.
        queries: number of queries.
        keys: number of keys.
        causal: whether keys ahead are hidden; then rows for them are not read either.
        window: of the attention: nor are rows for what is outside it.
    """
    changing = OffsetWindow.of(tables)
    if changing is None:
        return None
    return _cut(changing.low, changing.high, query_start, queries, keys, causal, window)


@lru_cache(maxsize=4096)
def _cut(
    low: int, high: int, query_start: int, queries: int, keys: int, causal: bool, window: Window
) -> TableWindow:
    """`low..high` among the offsets of the call."""
    offsets = call_offsets(query_start, queries, keys, causal=causal, window=window)
    changing = OffsetWindow(low, high).cut(*offsets)
    first = min(changing.low, changing.high - 1)
    return TableWindow(first, changing.high - first + 1)
