"""Backward for tables with a row for many offsets: `dS` is made once, and stored a chunk at a time.

To make `dS` of a pair of tokens takes three products and more: scores, the tables' part, and the
weights' gradient. The kernels of `dq`, of `dk` and `dv` and of the tables would each make it anew.
Here the dkdv kernel alone makes it, with its own products, and writes it down in the dtype in which
it is multiplied anyhow. Three products are left. Memory stays linear in the tokens: a chunk has as
many bytes as the gradients have, or `LEAST_BYTES`. Everything is added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from . import launch
from .kernel_args import StoredScores
from .kernels.backward_dkdv import dkdv_kernel
from .kernels.backward_stored import delta_kernel, stored_dq_kernel, stored_dtables_kernel
from .launch import run_largest_that_fits
from .prepared_call import PreparedCall
from .saved import Saved
from .table_gradients import EndRows, add_end_rows, heads_of_tables
from .tensor_args import maybe_token_tensor, token_tensor
from .tuning import NARROW, TileShape, count_tiles, split_count

__all__ = ["LEAST_BYTES", "stored_gradients", "stores_scores"]

LEAST_BYTES = 64 << 20  # of a chunk, if there are as many pairs
_MOST_ELEMENTS = 1 << 30  # positions within a chunk are numbers of 32 bits


def stores_scores(call: PreparedCall, needed: frozenset[str]) -> bool:
    """Whether `dS` is to be stored: a table that is sheared is wide, and learns with the rest."""
    sheared = call.tables.keys() - {"bias"}
    return (
        call.grid is None
        and bool(sheared & needed)
        and call.table_window.num_rows > NARROW
        and {"q", "k", "v"} <= needed
    )


class _Chunk(NamedTuple):
    """Key heads `first_kv_head..first_kv_head + kv_heads - 1`, queries `i_begin..i_end - 1`."""

    first_kv_head: int
    kv_heads: int
    i_begin: int
    i_end: int


class _Plan(NamedTuple):
    """How the pairs are cut into chunks.

    Args:
        kv_heads: of a chunk, at most.
        queries: of a chunk, at most; whole tiles.
        keys: of a stored row; whole tiles.
        margin: zeros after a row, and before the next one.
    """

    kv_heads: int
    queries: int
    keys: int
    margin: int

    @classmethod
    def of(cls, call: PreparedCall, shape: TileShape) -> _Plan:
        """The same number of pairs in each, nearly; for tiles of some shape."""
        learnt = (call.q, call.k, call.v)
        wanted = max(sum(x.numel() * x.element_size() for x in learnt), LEAST_BYTES)
        elements = min(wanted // call.q.element_size(), _MOST_ELEMENTS)
        keys = count_tiles(call.seqlen_k, shape.n) * shape.n
        tiles = count_tiles(call.seqlen_q, shape.m)
        margin = shape.m + shape.n
        of_tile = call.heads // call.kv_heads * shape.m * (keys + margin)
        if (at_once := elements // (of_tile * tiles)) > 0:
            return cls(
                _even_share(call.batch * call.kv_heads, at_once), tiles * shape.m, keys, margin
            )
        tiles = _even_share(tiles, max(elements // of_tile, 1))
        return cls(1, tiles * shape.m, keys, margin)

    def chunks(self, call: PreparedCall) -> Iterator[_Chunk]:
        """Those of a call, in order."""
        total = call.batch * call.kv_heads
        for head in range(0, total, self.kv_heads):
            for i in range(0, call.seqlen_q, self.queries):
                yield _Chunk(head, min(self.kv_heads, total - head), i, i + self.queries)


def _even_share(count: int, at_most: int) -> int:
    """The size of as few shares of `count` as there can be, if none is larger than `at_most`."""
    return count_tiles(count, count_tiles(count, at_most))


def stored_gradients(
    call: PreparedCall, saved: Saved, delta: Tensor, needed: frozenset[str]
) -> dict[str, Tensor]:
    """The gradients of queries, keys, values and tables, by name; `delta (b, h, i)` is written.

    Args:
        call: as forward had it, for which `stores_scores` holds.
        saved: of the forward pass.
        delta: to write to.
        needed: names of tensors, as in `PreparedCall`.
    """
    found: list[dict[str, Tensor]] = []
    run_largest_that_fits(
        "dkdv", call,
        lambda shape: found.append(_Run(call, saved, delta, needed, shape).gradients()),
    )  # fmt: skip
    return found[-1]


class _Run:
    """One run with tiles of some shape."""

    def __init__(
        self, call: PreparedCall, saved: Saved, delta: Tensor, needed: frozenset[str],
        shape: TileShape,
    ) -> None:  # fmt: skip
        self.call, self.saved, self.delta, self.needed = call, saved, delta, needed
        self.shape, self.plan = shape, _Plan.of(call, shape)
        self.spec = saved.specialization(call, shape)
        self.names = tuple(name for name in call.tables if name in needed)
        self.d_q, self.d_k, self.d_v = map(_empty_like, (call.q, call.k, call.v))
        self.d_q_rel = None
        if call.q_rel is not None and "q_rel" in needed:
            self.d_q_rel = _empty_like(call.q_rel)
        float32 = torch.float32
        of_queries = call.q.new_empty((4, *call.q.shape[:3]), dtype=float32)
        of_keys = None
        if "queries" in needed:
            keys = (2, call.batch, call.heads, call.seqlen_k)
            of_keys = call.q.new_empty(keys, dtype=float32)
        self.end_rows = EndRows(of_queries, of_keys)
        self.in_parts = self.plan.queries < call.seqlen_q
        self.sums_k = self.sums_v = None
        if self.in_parts:
            rows = (1, self.plan.kv_heads, call.seqlen_k)
            self.sums_k, self.sums_v = (
                x.new_empty((*rows, x.shape[3]), dtype=float32) for x in (call.k, call.v)
            )
        self.stored = self._buffer()
        self.table_heads = heads_of_tables(call, self.names)

    def gradients(self) -> dict[str, Tensor]:
        """By name."""
        call, shape = self.call, self.shape
        queries = call.batch * call.heads * count_tiles(call.seqlen_q, shape.m)
        self._launch(
            delta_kernel, queries, queries, token_tensor(self.saved.out), self.saved.softmax,
            token_tensor(self.saved.d_out), self.saved.d_lse, self.delta,
            HAS_D_LSE=self.saved.d_lse is not None,
        )  # fmt: skip
        sums = self._empty_sums()
        for chunk in self.plan.chunks(call):
            if self.spec.has_tile_ranges:  # a tile that no program computes is read
                for x in (self.stored.d_scores, self.stored.weights):
                    if x is not None:
                        x.zero_()
            self._run_dkdv(chunk)
            self._run_dq(chunk)
            self._run_dtables(chunk, sums)
        gradients = {"q": self.d_q, "k": self.d_k, "v": self.d_v}
        if self.d_q_rel is not None:
            gradients["q_rel"] = self.d_q_rel
        return gradients | add_end_rows(call, self.saved, self.end_rows, sums)

    def _buffer(self) -> StoredScores:
        d_scores = self._rows()
        weights = self._rows() if "values" in self.needed else None
        return StoredScores(d_scores, weights, *d_scores.stride()[:2])

    def _rows(self) -> Tensor:
        """`(heads, queries, keys)` of a chunk, with margins of zeros."""
        plan, call = self.plan, self.call
        heads = plan.kv_heads * (call.heads // call.kv_heads)
        width = plan.keys + plan.margin
        x = call.k.new_empty(plan.margin + heads * plan.queries * width)
        x[: plan.margin] = 0
        rows = x[plan.margin :].view(heads, plan.queries, width)
        rows[:, :, plan.keys :] = 0
        return rows

    def _empty_sums(self) -> dict[str, Tensor]:
        call = self.call
        rows = call.table_window.num_rows
        chunks = count_tiles(rows - 2, self.shape.n)
        heads = (
            self.table_heads
            if self.table_heads == 1
            else self._heads_of(_Chunk(0, self.plan.kv_heads, 0, 0))
        )
        items = count_tiles(self.plan.queries, self.shape.m)
        self.splits = split_count(chunks * heads, items, call.q.device)
        return {
            name: call.q.new_zeros(
                (self.splits, self.table_heads, rows, *call.expanded_tables[name].shape[2:]),
                dtype=torch.float32,
            )
            for name in self.names
        }

    def _heads_of(self, chunk: _Chunk) -> int:
        """How many query heads the chunk has, of whatever sequences."""
        last = chunk.first_kv_head + chunk.kv_heads - 1
        kv_heads = last // self.call.batch - chunk.first_kv_head // self.call.batch + 1
        return kv_heads * (self.call.heads // self.call.kv_heads)

    def _run_dkdv(self, chunk: _Chunk) -> None:
        call, saved = self.call, self.saved
        tiles = call.count_key_tiles(self.spec)
        self._launch(
            dkdv_kernel, chunk.kv_heads * tiles, call.batch * call.kv_heads * tiles, saved.softmax,
            token_tensor(saved.d_out), self.delta, None, token_tensor(self.d_k),
            token_tensor(self.d_v), None, self.end_rows.of_keys, self.stored,
            maybe_token_tensor(self.sums_k), maybe_token_tensor(self.sums_v), chunk.first_kv_head,
            chunk.i_begin, chunk.i_end,
            NEEDS_D_LOGITS=False, NEEDS_D_QUERIES="queries" in self.needed, STORES_D_SCORES=True,
            STORES_WEIGHTS=self.stored.weights is not None, IN_PARTS=self.in_parts,
        )  # fmt: skip

    def _run_dq(self, chunk: _Chunk) -> None:
        call, needed = self.call, self.needed
        i_end = min(chunk.i_end, call.seqlen_q)
        heads = chunk.kv_heads * (call.heads // call.kv_heads)
        tiles = heads * count_tiles(i_end - chunk.i_begin, self.shape.m)
        self._launch(
            stored_dq_kernel, tiles, tiles, self.stored, call.batch, chunk.first_kv_head,
            chunk.i_begin, i_end, token_tensor(self.d_q), maybe_token_tensor(self.d_q_rel),
            self.end_rows.of_queries, NEEDS_D_Q=True, NEEDS_D_Q_REL=self.d_q_rel is not None,
            NEEDS_END_D_SCORES=bool(needed & {"keys", "bias"}),
            NEEDS_END_WEIGHTS="values" in needed,
        )  # fmt: skip

    def _run_dtables(self, chunk: _Chunk, sums: dict[str, Tensor]) -> None:
        call, names = self.call, self.names
        chunks = count_tiles(call.table_window.num_rows - 2, self.shape.n)
        heads = 1 if self.table_heads == 1 else self._heads_of(chunk)
        programs = chunks * heads * self.splits
        self._launch(
            stored_dtables_kernel, programs, programs, self.stored, call.batch,
            chunk.first_kv_head, chunk.kv_heads, chunk.i_begin, min(chunk.i_end, call.seqlen_q),
            token_tensor(self.saved.d_out),
            *(sums.get(name) for name in ("keys", "queries", "bias", "values")),
            self.table_heads, self.splits,
            NEEDS_D_KEYS="keys" in names, NEEDS_D_QUERIES="queries" in names,
            NEEDS_D_BIAS="bias" in names, NEEDS_D_VALUES="values" in names,
        )  # fmt: skip

    def _launch(
        self, kernel: object, programs: int, num_tiles: int, *arguments: object, **constants: bool
    ) -> None:
        args = self.call.kernel_args(self.spec, num_tiles)
        launch.run_programs(
            kernel, programs, *args, *arguments, SPEC=self.spec, **constants, shape=self.shape
        )


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
