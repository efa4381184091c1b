"""The tables that every relative position scheme hands to the attention op.

A scheme adds at most four things to attention, each a table indexed by the offset
(key position - query position):

    s_ij = scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i],   p_i = q_i or q_rel_i
    o_i  = sum_j softmax(s_i)_j * (v_j + V[j-i])

`Terms` holds K, Q, B, V and q_rel; `OffsetTable` is one of the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Literal

from torch import Tensor

from .checks import check_count, check_sizes, check_tensor, one_line
from .errors import ShapeError

__all__ = ["NO_TERMS", "GridTerms", "OffsetTable", "Terms"]


@dataclass(frozen=True, eq=False)
class OffsetTable:
    """A table with one row for each offset `first, first + 1, ..., last`.

    Args:
        rows: vectors `(h or 1, r, d)`, or scalars `(h or 1, r)` for a bias in logits.
        first: the offset of row 0, in tokens; negative looks back.
        beyond: the row of an offset outside the table: the nearest end row (`"clamp"`), or none,
            so that nothing is added (`"zero"`).

    Raises:
        ShapeError: if `rows` has neither two nor three axes, has no row, or is not dense.
        TypeError: if `rows` is no tensor.
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
        check_tensor("OffsetTable", "rows", self.rows)
        object.__setattr__(
            self, "first", check_count("OffsetTable", "first", self.first, least=None)
        )
        if self.rows.ndim not in (2, 3) or 0 in self.rows.shape[:2]:
            raise ShapeError(
                "OffsetTable: rows must be vectors (h or 1, r, d) or scalars (h or 1, r) "
                f"with r >= 1, got {tuple(self.rows.shape)}"
            )
        if not isinstance(self.beyond, str) or self.beyond not in ("clamp", "zero"):
            raise ValueError(
                f"OffsetTable: beyond must be 'clamp' or 'zero', got {one_line(self.beyond)}"
            )

    def map(self, function: Callable[[Tensor], Tensor]) -> OffsetTable:
        """The same table with `function` applied to its rows."""
        return replace(self, rows=function(self.rows))

    @property
    def last(self) -> int:
        """The offset of the last row, in tokens."""
        return self.first + self.rows.shape[1] - 1


@dataclass(frozen=True, eq=False)
class Terms:
    """What a scheme adds to attention along one axis; each part may be absent.

    Args:
        keys: K, dotted with the query (Shaw's a^K, Huang's E_r); width of `q` or `q_rel`.
        queries: Q, dotted with the key (DeBERTa's position-to-content); width of `k`.
        bias: B, scalars in logits, not multiplied by the scale (T5, ALiBi).
        values: V, vectors added to the values (Shaw's a^V); width of `v`.
        q_rel: `(b, h, i, d_rel)`: dotted with `keys` instead of the query.

    Raises:
        ShapeError: if `bias` holds vectors, or another table scalars, or `q_rel` is not dense.
        TypeError: if a table is no `OffsetTable`, or `q_rel` no tensor.
        ValueError: if `q_rel` is given without `keys`.

    >>> import torch
    >>> from relpos import attention
    >>> q = k = v = torch.randn(1, 2, 5, 8)
    >>> near = OffsetTable(torch.randn(2, 7), first=-3)   # each head's bias at offsets -3..3
    >>> attention(q, k, v, Terms(bias=near)).shape
    torch.Size([1, 2, 5, 8])
    """

    keys: OffsetTable | None = None
    queries: OffsetTable | None = None
    bias: OffsetTable | None = None
    values: OffsetTable | None = None
    q_rel: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "queries", "bias", "values"):
            table: OffsetTable | None = getattr(self, name)
            if table is None:
                continue
            if not isinstance(table, OffsetTable):
                raise TypeError(
                    f"Terms: {name} must be an OffsetTable or None, got {type(table).__name__}"
                )
            axes = "(h or 1, r)" if name == "bias" else "(h or 1, r, d)"
            if table.rows.ndim != axes.count(",") + 1:
                raise ShapeError(
                    f"Terms: {name}.rows must be {axes}, got {tuple(table.rows.shape)}"
                )
        if self.q_rel is not None:
            check_tensor("Terms", "q_rel", self.q_rel)
        if self.q_rel is not None and self.keys is None:
            raise ValueError("Terms: q_rel must come with keys, got q_rel alone")

    def map(self, function: Callable[[Tensor], Tensor]) -> Terms:
        """The same terms with `function` applied to every tensor."""
        tables = {name: table.map(function) for name, table in self.tables.items()}
        return Terms(**tables, q_rel=None if self.q_rel is None else function(self.q_rel))

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor of the terms."""
        tables = (self.keys, self.queries, self.bias, self.values)
        rows = [table.rows for table in tables if table is not None]
        return rows if self.q_rel is None else [*rows, self.q_rel]

    @property
    def tables(self) -> dict[str, OffsetTable]:
        """The tables that are present, by name."""
        named = {
            "keys": self.keys, "queries": self.queries, "bias": self.bias, "values": self.values,
        }  # fmt: skip
        return {name: table for name, table in named.items() if table is not None}


# Plain attention.
NO_TERMS = Terms()


@dataclass(frozen=True, eq=False)
class GridTerms:
    """Terms of an n-dimensional grid of tokens: one `Terms` per axis, and a joint bias.

    The score of two tokens is the sum over the axes of what each `Terms` adds at the offset along
    its axis (Ramachandran et al. 2019, eq. 3; Srinivas et al. 2021, figure 4), plus
    `joint_bias` at all offsets together (Liu et al. 2021, eq. 4). Where queries and keys have
    grids of different size, offsets along an axis count steps of the finer of the two, and a
    table that falls between two rows is interpolated linearly.

    Memory is that of tokens times the sum of the sides (`native` needs it for `queries` alone,
    and there for one head on each thread), and for an axis whose queries are pooled that of
    `n_i x n_j` rows (in `native` where neither size divides the other). A grid of one axis may
    therefore cost a score matrix where it has a prefix, a joint bias or pooled queries; else it is
    a line of tokens like any other.

    Args:
        shape: the grid of the keys, e.g. `(height, width)`; tokens come in row-major order.
        axes: one `Terms` per axis, in the same order; empty means none on any axis.
        joint_bias: `(h or 1, 2 n - 1, 2 m - 1, ...)` logits for a grid `n x m x ...`; the entry of
            offset 0 along every axis is in the middle.
        query_shape: the grid of the queries (pooled queries); None means that of the keys.
        prefix: number of tokens before the grid and not on it (class tokens), among the queries
            and among the keys; no table applies to them.

    Raises:
        ShapeError: if `joint_bias` does not fit the grid, or is not dense.
        TypeError: if `axes` is no tuple or list of `Terms`, or `joint_bias` no tensor.
        ValueError: if a size is out of range, `axes` or `query_shape` has not one entry for each
            axis, or `query_shape` differs from `shape` beside a joint bias.

    >>> GridTerms((4, 6), prefix=1).tokens
    25
    """

    shape: tuple[int, ...]
    axes: tuple[Terms, ...] = ()
    joint_bias: Tensor | None = None
    query_shape: tuple[int, ...] | None = None
    prefix: int = 0

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        set_field("shape", check_sizes("GridTerms", "shape", self.shape))
        if self.query_shape is not None:
            set_field("query_shape", check_sizes("GridTerms", "query_shape", self.query_shape))
        set_field("prefix", check_count("GridTerms", "prefix", self.prefix, least=0))
        if not isinstance(self.axes, tuple | list):
            raise TypeError(
                f"GridTerms: axes must be a tuple of Terms, got {type(self.axes).__name__}"
            )
        set_field("axes", tuple(self.axes) or (Terms(),) * len(self.shape))
        for name in ("axes", "query_shape"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.shape):
                raise ValueError(
                    f"GridTerms: {name} must have one entry per axis of shape {self.shape}, "
                    f"got {len(value)}"
                )
        for terms in self.axes:
            if not isinstance(terms, Terms):
                raise TypeError(f"GridTerms: axes must hold Terms, got {type(terms).__name__}")
        if self.joint_bias is not None:
            self._check_joint_bias(self.joint_bias)

    def _check_joint_bias(self, joint_bias: Tensor) -> None:
        check_tensor("GridTerms", "joint_bias", joint_bias)
        if self.query_grid != self.shape:
            raise ValueError(
                "GridTerms: query_shape must be None or shape with a joint bias, "
                f"got {self.query_shape}"
            )
        sizes = tuple(2 * size - 1 for size in self.shape)
        if tuple(joint_bias.shape[1:]) != sizes:
            raise ShapeError(
                f"GridTerms: joint_bias must be (h or 1, {', '.join(map(str, sizes))}) for a grid "
                f"of shape {self.shape}, got {tuple(joint_bias.shape)}"
            )

    def map(self, function: Callable[[Tensor], Tensor]) -> GridTerms:
        """The same terms with `function` applied to every tensor."""
        return replace(
            self,
            axes=tuple(axis.map(function) for axis in self.axes),
            joint_bias=None if self.joint_bias is None else function(self.joint_bias),
        )

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor of the terms."""
        tensors = [tensor for axis in self.axes for tensor in axis.tensors]
        return tensors if self.joint_bias is None else [*tensors, self.joint_bias]

    @property
    def query_grid(self) -> tuple[int, ...]:
        """The grid of the queries, that of the keys if they have none of their own."""
        return self.shape if self.query_shape is None else self.query_shape

    @property
    def tokens(self) -> int:
        """Number of keys: the prefix and the whole grid."""
        return self.prefix + prod(self.shape)

    @property
    def query_tokens(self) -> int:
        """Number of queries: the prefix and their whole grid."""
        return self.prefix + prod(self.query_grid)
