"""The tables that every relative position scheme hands to the attention op.

A scheme adds at most four things to attention, each a table indexed by the offset
(key position - query position):

    s_ij = scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i],   p_i = q_i or q_rel_i
    o_i  = sum_j softmax(s_i)_j * (v_j + V[j-i])

`Terms` holds K, Q, B, V and q_rel; `OffsetTable` is one of the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .errors import ShapeError, check_count

__all__ = ["GridTerms", "OffsetTable", "Terms"]


@dataclass(frozen=True, eq=False)
class OffsetTable:
    """A table with one row for each offset `first, first + 1, ..., last`.

    Args:
        rows: vectors `(h or 1, r, d)`, or scalars `(h or 1, r)` for a bias in logits.
        first: the offset of row 0, in tokens; negative looks back.
        beyond: what an offset outside the table meets: the nearest end row (`"clamp"`) or
            nothing at all (`"zero"`).

    Raises:
        ShapeError: if `rows` is neither two- nor three-dimensional, or has no row.
        ValueError: if `beyond` is neither `"clamp"` nor `"zero"`, or `first` is no integer.

    >>> import torch
    >>> table = OffsetTable(torch.zeros(1, 5, 8), first=-2)
    >>> table.last
    2
    """

    rows: Tensor
    first: int
    beyond: Literal["clamp", "zero"] = "clamp"

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", _first(self.first))
        if self.rows.ndim not in (2, 3) or 0 in self.rows.shape[:2]:
            raise ShapeError(
                "OffsetTable: rows must be vectors (h or 1, r, d) or scalars (h or 1, r) "
                f"with r >= 1, got {tuple(self.rows.shape)}"
            )
        if self.beyond not in ("clamp", "zero"):
            raise ValueError(f"OffsetTable: beyond must be 'clamp' or 'zero', got {self.beyond!r}")

    @property
    def last(self) -> int:
        """The offset of the last row, in tokens."""
        return self.first + self.rows.shape[1] - 1


def _first(value: int) -> int:
    if isinstance(value, torch.SymInt):
        return value
    return check_count("OffsetTable", "first", value, least=None)


@dataclass(frozen=True, eq=False)
class Terms:
    """What a scheme adds to attention along one axis; each part may be absent.

    Args:
        keys: K, vectors that meet the query (Shaw's a^K, Huang's E_r); width of `q` or `q_rel`.
        queries: Q, vectors that meet the key (DeBERTa's position-to-content); width of `k`.
        bias: B, scalars in logits, not multiplied by the scale (T5, ALiBi).
        values: V, vectors added to the values (Shaw's a^V); width of `v`.
        q_rel: `(b, h, i, d_rel)`: meets `keys` in place of the query.

    Raises:
        ShapeError: if `bias` holds vectors, or another table scalars.
        TypeError: if a table is no `OffsetTable`.
        ValueError: if `q_rel` is given without `keys`.
    """

    keys: OffsetTable | None = None
    queries: OffsetTable | None = None
    bias: OffsetTable | None = None
    values: OffsetTable | None = None
    q_rel: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "queries", "bias", "values"):
            table: OffsetTable | None = getattr(self, name)
            if table is not None and not isinstance(table, OffsetTable):
                raise TypeError(
                    f"Terms: {name} must be an OffsetTable or None, got {type(table).__name__}"
                )
            axes = "(h or 1, r)" if name == "bias" else "(h or 1, r, d)"
            if table is not None and table.rows.ndim != axes.count(",") + 1:
                raise ShapeError(
                    f"Terms: {name}.rows must be {axes}, got {tuple(table.rows.shape)}"
                )
        if self.q_rel is not None and self.keys is None:
            raise ValueError("Terms: q_rel must come with keys, got q_rel alone")

    @property
    def tables(self) -> dict[str, OffsetTable]:
        """The tables that are present, by name."""
        named = {
            "keys": self.keys, "queries": self.queries, "bias": self.bias, "values": self.values,
        }  # fmt: skip
        return {name: table for name, table in named.items() if table is not None}


@dataclass(frozen=True, eq=False)
class GridTerms:
    """Factorised terms of an n-dimensional grid: one `Terms` per axis.

    Args:
        shape: the grid, e.g. `(height, width)`; tokens come in row-major order.
        axes: one `Terms` per axis of the grid, in the same order.

    Raises:
        ValueError: if there is not exactly one `Terms` per axis.
    """

    shape: tuple[int, ...]
    axes: tuple[Terms, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.axes):
            raise ValueError(
                "GridTerms: axes must hold one Terms per axis of shape "
                f"{self.shape}, got {len(self.axes)}"
            )
