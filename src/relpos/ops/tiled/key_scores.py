"""The table whose rows are dotted with the keys: `scale * k_j . Q[j - i]`, in column tiles.

A key's scores by offset are `k_j . Q_r`, read upwards: the next query sees the same key one offset
earlier. With the offsets in reverse it is the shear of the other tables, transposed:

    y[a, c] = x[c, c + (m - 1) - a] = x'[c, a + (n - 1) - c]    with x'[c, o] = x[c, w - 1 - o]

Tiles about half as wide as the block is high keep what no query sees to a third of the scores.
Few queries, as in a step of decoding, would leave a tile nearly empty: they go one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...shear import shear_view
from .band import BandTable
from .blocks_input import BlocksInput
from .plan import Block, RowBlock

__all__ = ["add_queries", "collect_queries"]

_MIN_TILE_COLUMNS = 64
# Fewer would leave a tile nearly empty.
_FEW_QUERIES = 8
# Of one query at a time, so that their products stay in the cache.
_MAX_COLUMNS = 512


@dataclass(frozen=True)
class _Tile:
    """Some columns of the band, and their offsets."""

    columns: slice
    first: int  # offset of the last query at the first column
    visible: int  # offsets from there on that take part; those ahead of a causal query do not
    span: int  # offsets in all

    @property
    def hidden(self) -> int:
        """Reversed offsets at the start that no pair has."""
        return self.span - self.visible


def _tiles(rows: RowBlock) -> Iterator[_Tile]:
    last = rows.position + rows.count - 1
    step = max(rows.count // 2, _MIN_TILE_COLUMNS)
    for begin in range(rows.left, rows.right, step):
        end = min(begin + step, rows.right)
        first, span = begin - last, rows.count + end - begin - 1
        visible = min(span, 1 - first) if rows.causal else span
        if visible > 0:
            yield _Tile(slice(begin, end), first, visible, span)


def add_queries(call: BlocksInput, block: Block, scores: Tensor) -> None:
    """Add the term to `scores (b, h, m, n)`."""
    table = call.tables.get("queries")
    if table is None:
        return
    rows, k, scale = block.rows, _keys(call, block), call.scale
    scores = _per_kv_head(scores, call.shape.heads_per_kv_head)
    for side, columns in call.far_columns(rows):
        far = table.far(side, block.heads)
        if far is not None:
            scores[..., columns].add_((k[..., columns, :] @ _rows(far, k).mT).mT, alpha=scale)
    if rows.count < _FEW_QUERIES:
        for row, columns, first in _one_by_one(rows):
            picked = _rows(table.at(first, columns.stop - columns.start, block.heads), k)
            scores[..., row, columns].add_(_dot(k[..., columns, :], picked), alpha=scale)
        return
    for tile in _tiles(rows):
        k_tile = k[..., tile.columns, :]
        reverse = _reverse(table, tile, block, k)
        lead = torch.broadcast_shapes(k_tile.shape[:3], (1, *reverse.shape[:2]))
        by_offset = call.workspace.take("sheared keys", *lead, k_tile.shape[3], tile.span)
        by_offset[..., : tile.hidden] = 0
        torch.matmul(k_tile, reverse.mT, out=by_offset[..., tile.hidden :])
        scores[..., tile.columns].add_(shear_view(by_offset, rows.count).mT, alpha=scale)


def collect_queries(call: BlocksInput, block: Block, d_scores: Tensor, d_k: Tensor | None) -> None:
    """Add the gradients of the keys, to `d_k (b, g, n, d)`, and of the table.

    Args:
        call: its inputs.
        block: where.
        d_scores: `(b, h, m, n)`.
        d_k: the part of the gradient that belongs to the block's keys; None where not wanted.
    """
    table = call.tables.get("queries")
    if table is None or (d_k is None and not table.learns):
        return
    rows, k, scale = block.rows, _keys(call, block), call.scale
    d_scores = _per_kv_head(d_scores, call.shape.heads_per_kv_head)
    if not table.per_head:
        d_scores = d_scores.sum(2, keepdim=True)
    for side, columns in call.far_columns(rows):
        far = table.far(side, block.heads)
        if far is None:
            continue
        over = d_scores[..., columns].sum(-2).unsqueeze(-1)  # (b, g, n or 1, columns, 1)
        if d_k is not None:
            d_k[..., columns, :].add_((over @ _rows(far, k)).sum(2), alpha=scale)
        if table.learns:
            grad = scale * _table_gradient(over, k[..., columns, :], table)
            table.add_far(side, block.heads, grad)
    if rows.count < _FEW_QUERIES:
        _collect_one_by_one(call, block, table, d_scores, d_k)
        return
    for tile in _tiles(rows):
        d_tile = d_scores[..., tile.columns]
        by_offset = call.workspace.take(
            "sheared keys", *d_tile.shape[:3], d_tile.shape[4], tile.span
        ).zero_()
        shear_view(by_offset, rows.count).copy_(d_tile.mT)
        by_offset = by_offset[..., tile.hidden :]
        if d_k is not None:
            part = (by_offset @ _reverse(table, tile, block, k)).sum(2)
            d_k[..., tile.columns, :].add_(part, alpha=scale)
        if table.learns:
            grad = scale * _table_gradient(by_offset, k[..., tile.columns, :], table)
            table.add_at(tile.first, block.heads, grad.flip(1))


def _one_by_one(rows: RowBlock) -> Iterator[tuple[int, slice, int]]:
    """Each query, some columns of the band that it may see, and the offset of the first of them."""
    for row in range(rows.count):
        position = rows.position + row
        last = min(rows.right, position + 1) if rows.causal else rows.right
        for begin in range(rows.left, last, _MAX_COLUMNS):
            yield row, slice(begin, min(begin + _MAX_COLUMNS, last)), begin - position


def _collect_one_by_one(
    call: BlocksInput, block: Block, table: BandTable, d_scores: Tensor, d_k: Tensor | None
) -> None:
    k = _keys(call, block)
    for row, columns, first in _one_by_one(block.rows):
        d_row = d_scores[..., row, columns].unsqueeze(-1)
        if d_k is not None:
            picked = _rows(table.at(first, columns.stop - columns.start, block.heads), k)
            d_k[..., columns, :].add_((d_row * picked).sum(2), alpha=call.scale)
        if table.learns:
            each = call.scale * (d_row * k[..., columns, :]).sum(0)
            shared = each.sum((0, 1)).unsqueeze(0)
            table.add_at(first, block.heads, each.flatten(0, 1) if table.per_head else shared)


def _dot(k: Tensor, rows: Tensor) -> Tensor:
    """`k (b, g, 1, c, d) . rows (g or 1, n or 1, c, d)`: `(b, g, n or 1, c)`."""
    if rows.shape[:2] == (1, 1):
        return torch.einsum("bgcd,cd->bgc", k[:, :, 0], rows[0, 0]).unsqueeze(2)
    return (k * rows).sum(-1)


def _per_kv_head(x: Tensor, heads_per_kv_head: int) -> Tensor:
    """`(b, h, ...)` as `(b, g, n, ...)`, the query heads that share a key head together."""
    return x.unflatten(1, (-1, heads_per_kv_head))


def _keys(call: BlocksInput, block: Block) -> Tensor:
    """`(b, g, 1, n, d)`."""
    return call.k[block.keys].unsqueeze(2)


def _rows(rows: Tensor, k: Tensor) -> Tensor:
    """Rows `(h or 1, w, d)` of a table as `(g or 1, n or 1, w, d)`."""
    return rows.unsqueeze(0) if rows.shape[0] == 1 else rows.unflatten(0, (k.shape[1], -1))


def _reverse(table: BandTable, tile: _Tile, block: Block, k: Tensor) -> Tensor:
    """The tile's rows, the last offset first."""
    return _rows(table.at(tile.first, tile.visible, block.heads).flip(1), k)


def _table_gradient(x: Tensor, k: Tensor, table: BandTable) -> Tensor:
    """`sum x (b, g, n, c, w)^T k (b, g, 1, c, d)` over batch (and heads): `(h or 1, w, d)`."""
    each = (x.mT @ k).sum(0)
    return each.flatten(0, 1) if table.per_head else each.sum((0, 1)).unsqueeze(0)
