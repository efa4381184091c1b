"""One call, laid out for the kernels: shared by forward and backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...terms import OffsetTable
from .call import Call, Pairs, Rows, Settings, Sizes, Table, power_of_two
from .grid import GridPlan
from .window import Window, shared_window

__all__ = ["Grid", "Problem", "rows_contiguous", "rows_of"]

_INT32 = 1 << 31
_MOST_PAIRS = 1 << 20  # of tiles, that are compared at once


@dataclass(frozen=True)
class Grid:
    """The grid of a call: places of the keys and of the queries, and the tokens before."""

    shape: tuple[int, ...]
    query_shape: tuple[int, ...]
    prefix: int


class Problem:
    """The tensors of a call as the kernels take them.

    Args:
        tensors: by name: `q k v q_rel mask by_key by_query joint documents seed`, or None.
        tables: by name.
        grid: of the tokens; None on a line.
        causal: whether keys ahead of the query are left out.
        scale: of the scores.
        start: position of the first query.
        dropout: probability.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor | None],
        tables: dict[str, OffsetTable],
        grid: Grid | None,
        *,
        causal: bool,
        scale: float,
        start: int,
        dropout: float,
    ) -> None:
        q, k, v = (rows_contiguous(tensors[name]) for name in ("q", "k", "v"))
        assert q is not None
        assert k is not None
        assert v is not None
        self.q, self.k, self.v = q, k, v
        self.p = q if tensors["q_rel"] is None else rows_contiguous(tensors["q_rel"])
        self.own_p = tensors["q_rel"] is not None
        self.mask, self.documents = tensors["mask"], tensors["documents"]
        self.by_key, self.by_query, self.joint_bias = (
            tensors[name] for name in ("by_key", "by_query", "joint_bias")
        )
        self.seed = tensors["seed"]
        self.tables = tables
        self.batch, self.heads, self.queries, _ = q.shape
        self.groups, self.keys = k.shape[1], k.shape[2]
        self.causal, self.scale, self.dropout = causal, scale, dropout
        self.grid = grid
        self.window = shared_window(
            tables.values(), start, self.queries, self.keys, causal=causal and grid is None
        ) or Window(0, 1)
        self.rows = {name: self.window.stretched(table) for name, table in tables.items()}
        # However far off the queries are, positions fit in 32 bits: only offsets count.
        self.start = min(max(start, -self.queries), self.keys)
        self.first = self.window.first + start - self.start
        self.plan = (
            None
            if grid is None
            else GridPlan.of(grid.shape, grid.query_shape, grid.prefix, q.device)
        )

    @property
    def empty(self) -> bool:
        """Whether there is no pair at all."""
        return 0 in (self.batch, self.queries, self.keys)

    def settings(
        self, m: int, n: int, *, slabs: int, places: bool, besides: Iterable[Tensor | None] = ()
    ) -> Settings:
        """What a kernel with tiles of `m` queries and `n` keys is compiled for.

        Args:
            m: queries.
            n: keys.
            slabs: of the program's workspace, `m` rows each.
            places: whether weights are summed by place of the key.
            besides: tensors `(b, h, n, width)` of the kernel that are not the problem's.
        """
        mask, grid = self.mask, self.grid
        d, dp, dv = (x.shape[3] for x in (self.q, self.p, self.v))
        key_columns = 0 if grid is None else sum(grid.shape)
        query_columns = 0 if grid is None else sum(grid.query_shape)
        ring = power_of_two(m + 2 * n)
        return Settings(
            m=m,
            n=n,
            d=d,
            dp=dp,
            dv=dv,
            block_d=_block(d),
            block_p=_block(dp),
            block_v=_block(dv),
            keys="keys" in self.rows,
            queries="queries" in self.rows,
            bias="bias" in self.rows,
            values="values" in self.rows,
            own_p=self.own_p,
            causal=self.causal,
            causal_left=self.causal and self.first > 0,
            ragged=self.keys % n != 0,
            mask="none" if mask is None else "boolean" if mask.dtype == torch.bool else "additive",
            mask_i=mask is not None and mask.shape[2] > 1,
            mask_j=mask is not None and mask.shape[3] > 1,
            documents=self.documents is not None,
            dropout=self.dropout > 0,
            axes=0 if grid is None else len(grid.shape),
            key_columns=key_columns,
            query_columns=query_columns,
            block_places=_block(key_columns),
            block_query_places=_block(query_columns),
            by_key=self.by_key is not None,
            by_query=self.by_query is not None,
            joint_bias=self.joint_bias is not None,
            places=places,
            ring=ring,
            whole=self.window.rows <= ring,
            slab=slabs * m * ring,
            long=any(
                x.shape[2] * max(abs(x.stride(2)), x.shape[3]) >= _INT32
                for x in (self.q, self.k, self.v, self.p, self.by_key, self.by_query, *besides)
                if x is not None and x.ndim == 4
            ),
            precision=_precision(),
        )

    def call(self, settings: Settings, tiles: int, programs: int) -> tuple[Any, ...]:
        """A `Call` and its `Sizes`, for a kernel whose `tiles` are dealt out among `programs`."""
        documents, query_reach, key_reach = self._documents(settings.m, settings.n)
        plan, mask = self.plan, self.mask
        drop = min(round(self.dropout * (1 << 32)), (1 << 32) - 1)
        tables = {
            f"{name}_table": Table(x, x.stride(0) if x.shape[0] > 1 else 0)
            for name, x in self.rows.items()
        }
        call = Call(
            q=rows_of(self.q),
            k=rows_of(self.k),
            v=rows_of(self.v),
            p=rows_of(self.p) if self.own_p else None,
            **{
                f"{name}_table": tables.get(f"{name}_table")
                for name in ("keys", "queries", "bias", "values")
            },
            mask=None if mask is None else _pairs_of(mask),
            documents=documents,
            query_reach=query_reach,
            key_reach=key_reach,
            by_key=_maybe(self.by_key),
            by_query=_maybe(self.by_query),
            joint_bias=None if self.joint_bias is None else _table_of(self.joint_bias),
            key_places=None if plan is None else plan.key_places,
            query_places=None if plan is None else plan.query_places,
            key_lines=None if plan is None else plan.key_lines,
            query_lines=None if plan is None else plan.query_lines,
            seed=self.seed,
            slabs=self.q.new_empty(max(programs * settings.slab, 1), dtype=torch.float32),
            heads=self.heads,
            repeat=self.heads // self.groups,
            scale=self.scale,
            drop=drop,
            kept=1 / (1 - drop / (1 << 32)),
        )
        return call, *Sizes(
            length=self.queries,
            key_length=self.keys,
            start=self.start,
            window_first=self.first,
            window_rows=self.window.rows,
            all_tiles=tiles,
        )

    def _documents(self, m: int, n: int) -> tuple[Rows | None, Tensor | None, Tensor | None]:
        if self.documents is None:
            return None, None, None
        documents = self.documents.long().contiguous()
        of_queries = documents[:, self.start : self.start + self.queries]
        by_query, by_key = _reach(of_queries, documents, m, n)
        batch = documents.shape[0]
        return (
            Rows(documents, documents.stride(0) if batch > 1 else 0, 0, 1),
            by_query.expand(self.batch, -1, -1).contiguous(),
            by_key.expand(self.batch, -1, -1).contiguous(),
        )


def rows_of(x: Tensor) -> Rows:
    """A tensor `(b, h, n, width)` by its address and strides; those of axes of size 1 are 0."""
    sizes = zip(x.shape[:3], x.stride()[:3], strict=True)
    return Rows(x, *(stride if size > 1 else 0 for size, stride in sizes))


def _maybe(x: Tensor | None) -> Rows | None:
    return None if x is None else rows_of(rows_contiguous(x))


def _table_of(x: Tensor) -> Table:
    x = x.contiguous()
    return Table(x, x.stride(0) if x.shape[0] > 1 else 0)


def _pairs_of(mask: Tensor) -> Pairs:
    strides = (
        stride if size > 1 else 0 for size, stride in zip(mask.shape, mask.stride(), strict=True)
    )
    return Pairs(mask.view(torch.uint8) if mask.dtype == torch.bool else mask, *strides)


def rows_contiguous(x: Any) -> Any:
    """`x` with its last axis contiguous."""
    return x if x is None or x.shape[-1] == 1 or x.stride(-1) == 1 else x.contiguous()


def _precision() -> str:
    """How float32 matrix products are to be made, as torch's own setting says."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def _block(width: int) -> int:
    return power_of_two(max(width, 16))


def _reach(of_queries: Tensor, of_keys: Tensor, m: int, n: int) -> tuple[Tensor, Tensor]:
    """What tiles of `m` queries see at most of the keys, and tiles of `n` keys of the queries.

    Args:
        of_queries: the document of each query, `(b, i)`; negative for none.
        of_keys: that of each key, `(b, j)`.
        m: queries in a tile.
        n: keys in a tile.

    Returns:
        `(b, tiles, 2)` int32 each: the first token and the one after the last, in whole tiles.
    """
    queries, keys = _range_of_tiles(of_queries, m), _range_of_tiles(of_keys, n)
    return _met(queries, keys, n), _met(keys, queries, m)


def _range_of_tiles(documents: Tensor, size: int) -> Tensor:
    """The least and the largest document of each tile, `(b, tiles, 2)`; a tile without has none."""
    padded = pad(documents, (0, -documents.shape[1] % size), value=-1).unflatten(1, (-1, size))
    least = padded.masked_fill(padded < 0, torch.iinfo(padded.dtype).max).amin(2)
    return torch.stack([least, padded.amax(2)], 2)


def _met(own: Tensor, others: Tensor, size: int) -> Tensor:
    """Where the first of the `others` begins that each tile may meet, and where the last ends.

    Args:
        own: `(b, tiles, 2)`, ranges of documents.
        others: `(b, their tiles, 2)`.
        size: tokens in one of the others.

    Returns:
        `(b, tiles, 2)` int32, in tokens.
    """
    count = others.shape[1]
    at = torch.arange(count, device=own.device, dtype=torch.int32)
    least, most = others.unsqueeze(1).unbind(3)
    found = []
    for some in own.split(max(1, _MOST_PAIRS // count), 1):  # so that memory stays O(L)
        apart = (some[:, :, :1] > most) | (least > some[:, :, 1:])
        end = (at + 1).expand_as(apart).masked_fill(apart, 0).amax(2)
        begin = at.expand_as(apart).masked_fill(apart, count).amin(2)
        found.append(torch.stack([torch.minimum(begin, end), end], 2))
    return torch.cat(found, 1) * size
