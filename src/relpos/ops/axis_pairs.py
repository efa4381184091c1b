"""A grid's axes written out: the row of each pair of coordinates, logits of each pair of tokens.

So that torch can differentiate twice what a kernel computes: `axis_terms.py` shares products
between pairs, and of the tables a kernel has only the line of numbers that is made there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..offsets import grid_coordinates
from .arguments import Arguments
from .axis_terms import axis_last, axis_restored, paired_product

__all__ = [
    "AxisRows",
    "axis_rows",
    "coordinate_sums",
    "logits_of_rows",
    "pair_logits",
    "pair_values",
]


class AxisRows(NamedTuple):
    """The rows of one axis for each coordinate of the queries and of the keys.

    Args:
        keys: `(h or 1, n_i, n_j, d)`, or None.
        queries: likewise.
        bias: `(h or 1, n_i, n_j)`, or None.
        values: `(h or 1, n_i, n_j, dv)`, or None.
        q_rel: `(b, h, i, d)`, what the rows of keys are multiplied with; None: the queries.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    bias: Tensor | None = None
    values: Tensor | None = None
    q_rel: Tensor | None = None


class _Layout(NamedTuple):
    """How the rows of one axis lie, as `axis_terms.axis_tables` puts them.

    Args:
        queries: their coordinates.
        keys: theirs.
        ratio: how many times the more are more, where there is a row for each offset; 0: for each
            pair.
    """

    queries: int
    keys: int
    ratio: int

    @classmethod
    def of(cls, queries: int, keys: int) -> _Layout:
        """The layout for sizes that are no symbols."""
        finer, coarser = max(queries, keys), min(queries, keys)
        return cls(queries, keys, 0 if finer % coarser else finer // coarser)

    def of_symbols(self) -> _Layout:
        """The layout for the same sizes, where they were symbols."""
        return self if self.queries == self.keys else self._replace(ratio=0)

    @property
    def count(self) -> int:
        """Rows of a table."""
        if self.ratio:
            return 2 * max(self.queries, self.keys) - self.ratio
        return self.queries * self.keys

    def index(self, device: torch.device, *, of_keys: bool = False) -> Tensor:
        """`(n_i, n_j)`: the row of each pair; `of_keys`, where keys select runs of rows."""
        own, other = (self.keys, self.queries) if of_keys else (self.queries, self.keys)
        x = torch.arange(own, device=device)
        if not self.ratio:
            first = x * other
        elif own <= other:
            first = self.ratio * (own - 1 - x)
        else:
            first = x % self.ratio * (2 * other - 1) + other - 1 - x // self.ratio
        index = first.unsqueeze(1) + torch.arange(other, device=device)
        return index.mT if of_keys else index


def axis_rows(arguments: Arguments) -> list[AxisRows]:
    """The rows of all axes, from the line of numbers that `axis_terms.axis_tables` made.

    Args:
        arguments: of a call on a grid whose operator computes the logits per axis itself.
    """
    given, tables = arguments, arguments.axis_tables
    every_width = [
        {"keys": keys, "queries": queries * given.q.shape[3], "bias": bias,
         "values": values * given.v.shape[3]}
        for keys, queries, bias, values in zip(
            given.axis_key_widths, given.axis_has_queries, given.axis_has_bias,
            given.axis_has_values, strict=True,
        )
    ]  # fmt: skip
    layouts = [_Layout.of(*sizes) for sizes in zip(given.query_grid, given.key_grid, strict=True)]
    counts = [
        layout.count * sum(widths.values())
        for layout, widths in zip(layouts, every_width, strict=True)
    ]
    if tables is not None and sum(counts) != tables.shape[1]:
        layouts = [layout.of_symbols() for layout in layouts]
    found, first, first_q_rel = [], 0, 0
    for layout, widths, has_q_rel in zip(layouts, every_width, given.axis_has_q_rel, strict=True):
        rows: dict[str, Tensor] = {}
        for kind, width in widths.items():
            if not width:
                continue
            assert tables is not None
            end = first + layout.count * width
            index = layout.index(tables.device, of_keys=kind == "queries")
            picked = tables[:, first:end].unflatten(1, (layout.count, width))[:, index]
            rows[kind], first = picked.squeeze(-1) if kind == "bias" else picked, end
        if has_q_rel:
            assert given.q_rel is not None
            end = first_q_rel + widths["keys"]
            rows["q_rel"], first_q_rel = given.q_rel[..., first_q_rel:end], end
        found.append(AxisRows(**rows))
    return found


def logits_of_rows(
    q: Tensor, axes: Sequence[AxisRows], grid: Sequence[int], prefix: int, scale: float
) -> list[Tensor | None]:
    """For each axis `(b or 1, h or 1, tokens of the grid, n_j)`, as `axis_terms` has A.

    Args:
        q: `(b, h, i, d)`.
        axes: their rows.
        grid: of the queries.
        prefix: tokens before it.
        scale: of the products.
    """
    found: list[Tensor | None] = []
    for number, (axis, at) in enumerate(zip(axes, _coordinates(q, prefix, grid), strict=True)):
        part = None
        if axis.keys is not None:
            p = q if axis.q_rel is None else axis.q_rel
            part = scale * _products(p[:, :, prefix:], axis.keys, number, grid)
        if axis.bias is not None:
            bias = axis.bias[:, at].unsqueeze(0)
            part = bias if part is None else part + bias
        found.append(part)
    return found


def pair_logits(arguments: Arguments) -> Tensor | None:
    """`(b or 1, h or 1, i, j)`: what all axes add to the scores; None if nothing.

    Args:
        arguments: of a call on a grid, with logits per axis or with tables.
    """
    given, prefix = arguments, arguments.prefix
    of_keys: Sequence[Tensor | None] = ()
    of_queries: Sequence[Tensor | None] = ()
    if given.key_axis_logits is not None:
        of_keys = given.key_axis_logits[:, :, prefix:].split(list(given.key_grid), -1)
    if given.query_axis_logits is not None:
        of_queries = given.query_axis_logits[:, :, prefix:].split(list(given.query_grid), -1)
    if given.axis_tables is not None:
        rows = axis_rows(given)
        of_keys = logits_of_rows(given.q, rows, given.query_grid, prefix, given.scale)
        k = given.k.repeat_interleave(given.q.shape[1] // given.k.shape[1], dim=1)
        swapped = [
            AxisRows(keys=None if axis.queries is None else axis.queries.transpose(1, 2))
            for axis in rows
        ]
        of_queries = logits_of_rows(k, swapped, given.key_grid, prefix, given.scale)
    total = None
    for parts, other_grid, like, turned in (
        (of_keys, given.key_grid, given.k, False),
        (of_queries, given.query_grid, given.q, True),
    ):
        for part, at in zip(parts, _coordinates(like, prefix, other_grid), strict=False):
            if part is not None:
                pairs = part[..., at].mT if turned else part[..., at]
                total = pairs if total is None else total + pairs
    return None if total is None else pad(total, (prefix, 0, prefix, 0))


def pair_values(weights: Tensor, arguments: Arguments) -> Tensor | None:
    """`(b, h, i, dv)`: what the tables of values add to the output; None if nothing.

    Args:
        weights: `(b, h, i, sum of the keys' grid)`, as `coordinate_sums` gives them.
        arguments: of a call on a grid, with tables.
    """
    given, total = arguments, None
    if given.axis_tables is None:
        return None
    parts = weights[:, :, given.prefix :].split(list(given.key_grid), -1)
    for number, (axis, part) in enumerate(zip(axis_rows(given), parts, strict=True)):
        if axis.values is not None:
            term = _products(part, axis.values.transpose(2, 3), number, given.query_grid)
            total = term if total is None else total + term
    return None if total is None else pad(total, (0, 0, given.prefix, 0))


def coordinate_sums(weights: Tensor, arguments: Arguments) -> Tensor:
    """`(b, h, i, sum of the keys' grid)`: weights summed over the keys of each coordinate.

    Args:
        weights: `(b, h, i, j)`.
        arguments: of a call on a grid.
    """
    grid = tuple(arguments.key_grid)
    on_grid = weights[..., arguments.prefix :].unflatten(-1, grid)
    axes = range(-len(grid), 0)
    others = [[other for other in axes if other != axis] for axis in axes]
    return torch.cat([on_grid.sum(dims) if dims else on_grid for dims in others], -1)


def _coordinates(x: Tensor, prefix: int, grid: Sequence[int]) -> list[Tensor]:
    """Along each axis those of the tokens `x (b, h, tokens, d)` that lie on a grid."""
    tokens = torch.arange(x.shape[2] - prefix, device=x.device)
    return grid_coordinates(tokens, tuple(grid))


def _products(x: Tensor, rows: Tensor, axis: int, grid: Sequence[int]) -> Tensor:
    """`x (b, h, tokens, d)` of a grid with its coordinate's `rows (h or 1, n, c, d)`.

    The result is `(b, h, tokens, c)`.
    """
    along, others = axis_last(x.unflatten(2, tuple(grid)), axis)
    return axis_restored(paired_product(along, rows), axis, others).flatten(2, -2)
