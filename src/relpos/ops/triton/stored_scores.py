"""Backward for tables with a row for many offsets: `dS` is made once, and stored a chunk at a time.

To make `dS` of a pair of tokens takes three products and more: scores, the tables' part, and the
weights' gradient. The kernels of `dq`, of `dk` and `dv` and of the tables would each make it anew.
Here the dkdv kernel alone makes it, with its own products, and writes it down in the dtype in which
it is multiplied anyhow; with a table of keys three products are left. Memory stays linear in the
tokens: a chunk has as many bytes as the gradients of `q`, `k` and `v`, or `LEAST_BYTES`. Everything
is added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..result_layout import empty_gradient
from . import launch, tuning
from .kernel_args import StoredScores
from .kernels.backward_dkdv import dkdv_kernel
from .kernels.backward_stored import delta_kernel, stored_dq_kernel, stored_dtables_kernel
from .launch import run_largest_that_fits
from .prepared_call import PreparedCall
from .saved import Saved
from .table_gradients import EndRows, add_end_rows, heads_of_tables
from .tensor_args import maybe_token_tensor, token_tensor
from .tuning import NARROW, SHORT, TileShape, count_tiles, split_count

__all__ = ["LEAST_BYTES", "stored_gradients", "stores_scores"]

#: Of a chunk, if there are as many pairs: with less, too few programs have work.
LEAST_BYTES = 128 << 20
_MOST_ELEMENTS = 1 << 30  # positions within a head are numbers of 32 bits
_TALLEST, _WIDEST = 128, 64  # tile
_PROGRAMS_OF_A_PROCESSOR = 12
_MARGIN = _TALLEST + _WIDEST


def stores_scores(call: PreparedCall, needed: frozenset[str]) -> bool:
    """Whether `dS` is to be stored.

    It is where the window of the tables is wide and one that is sheared learns, with all else, and
    where most pairs take part, as far as the call's arguments tell. A bias wants the sum of `dS` in
    float32. With few numbers a row to make `dS` anew takes less time (`gpu_trials.json`).
    """
    learnt = needed & call.tables.keys()
    if call.grid is not None or call.table_window.num_rows <= NARROW:
        return False
    if not ({"q", "k", "v"} <= needed and learnt) or "bias" in learnt:
        return False
    if call.widths[1] < SHORT:
        return False
    if call.documents is not None or call.key_ranges is not None:
        return False
    if 2 * call.keys_of_a_tile(_TALLEST) < call.seqlen_k:
        return False
    return _elements(call, needed) >= _of_queries(call, _TALLEST, _keys(call, _WIDEST) + _MARGIN)


def _elements(call: PreparedCall, needed: frozenset[str]) -> int:
    """How many pairs a chunk may have."""
    gradients = sum(x.numel() * x.element_size() for x in (call.q, call.k, call.v))
    tensors = 2 if "values" in needed else 1
    wanted = max(gradients, LEAST_BYTES) // (tensors * call.q.element_size())
    return min(wanted, _MOST_ELEMENTS)


def _keys(call: PreparedCall, n: int, queries: int | None = None) -> int:
    """Up to the last one that any of the first `queries` sees, or any at all: of whole tiles."""
    keys = call.seqlen_k
    last = call.last_offset
    if queries is not None and last is not None:
        keys = min(keys, max(call.query_start + queries + last, 1))
    return count_tiles(keys, n) * n


def _of_queries(call: PreparedCall, queries: int, width: int) -> int:
    """Numbers for so many queries of all heads that share a key head."""
    return call.heads // call.kv_heads * queries * width


class _Chunk(NamedTuple):
    """Key heads `first_kv_head..first_kv_head + kv_heads - 1`, queries `i_begin..i_end - 1`.

    Those see no key from `keys` on.
    """

    first_kv_head: int
    kv_heads: int
    i_begin: int
    i_end: int
    keys: int


class _Plan(NamedTuple):
    """How the pairs are cut into chunks.

    Args:
        kv_heads: of a chunk, at most.
        ends: the query after the last one of each chunk of the same heads; whole tiles.
        keys: of a stored row, for each of these chunks; whole tiles.
        margin: zeros after a row, and before the next one.
    """

    kv_heads: int
    ends: tuple[int, ...]
    keys: tuple[int, ...]
    margin: int

    @classmethod
    def of(cls, call: PreparedCall, needed: frozenset[str], shape: TileShape) -> _Plan:
        """As few chunks as the memory allows, none of more pairs than that takes."""
        elements = _elements(call, needed)
        keys, margin = _keys(call, shape.n), shape.m + shape.n
        of_tile = _of_queries(call, shape.m, keys + margin)
        tiles = count_tiles(call.seqlen_q, shape.m)
        total = call.batch * call.kv_heads
        # Heads enough for all processors, whose tiles of keys see more or fewer queries.
        programs = tuning.processors(call.q.device) * _PROGRAMS_OF_A_PROCESSOR
        wanted = min(total, count_tiles(programs, count_tiles(keys, shape.n)))
        wanted = min(wanted, max(elements // of_tile, 1))
        wanted = max(wanted, min(total, elements // (of_tile * tiles)))
        kv_heads = _even_share(total, wanted)
        widths = [_keys(call, shape.n, tile * shape.m) + margin for tile in range(1, tiles + 1)]
        of_row = _of_queries(call, shape.m, kv_heads)
        ends = _cut(widths, elements // of_row)
        return cls(
            kv_heads, tuple(end * shape.m for end in ends),
            tuple(widths[end - 1] - margin for end in ends), margin,
        )  # fmt: skip

    @property
    def begins(self) -> tuple[int, ...]:
        """The first query of each chunk of the same heads."""
        return (0, *self.ends[:-1])

    @property
    def queries(self) -> int:
        """The queries of a chunk, at most."""
        return max(end - begin for begin, end in zip(self.begins, self.ends, strict=True))

    def numbers(self, heads: int) -> int:
        """The numbers of the largest chunk of so many heads, the margins after its rows too."""
        return heads * max(
            (end - begin) * (keys + self.margin)
            for begin, end, keys in zip(self.begins, self.ends, self.keys, strict=True)
        )

    def chunks(self, call: PreparedCall) -> Iterator[_Chunk]:
        """The chunks of a call, in order."""
        total = call.batch * call.kv_heads
        for head in range(0, total, self.kv_heads):
            for cut in zip(self.begins, self.ends, self.keys, strict=True):
                yield _Chunk(head, min(self.kv_heads, total - head), *cut)


def _cut(widths: list[int], most: int) -> list[int]:
    """Where to cut rows of so many numbers, each the width of the last row before its cut.

    Into as few pieces as there can be, if none has more numbers than `most`, or a single row; and
    the largest of them as small as it can be.

    >>> _cut([2, 3, 4, 5], 10), _cut([2, 3, 4, 5], 15), _cut([2, 3, 4, 5], 1)
    ([2, 4], [2, 4], [1, 2, 3, 4])
    """
    cuts = _cut_first(widths, most)
    if len(cuts) == 1:
        return cuts
    lowest, highest = 0, most
    while lowest < highest:
        middle = (lowest + highest) // 2
        if len(_cut_first(widths, middle)) > len(cuts):
            lowest = middle + 1
        else:
            highest = middle
    return _cut_first(widths, highest)


def _cut_first(widths: list[int], most: int) -> list[int]:
    """The same with the first pieces as large as they can be."""
    cuts, begin = [], 0
    for row in range(1, len(widths) + 1):
        if row == len(widths) or (row + 1 - begin) * widths[row] > most:
            cuts.append(row)
            begin = row
    return cuts


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
        known=(saved.known, needed),
    )  # fmt: skip
    return found[-1]


class _Run:
    """One run with tiles of some shape.

    `table_splits` programs share the sums over a chunk's queries for rows of a table.
    """

    def __init__(
        self, call: PreparedCall, saved: Saved, delta: Tensor, needed: frozenset[str],
        shape: TileShape,
    ) -> None:  # fmt: skip
        self.call, self.saved, self.delta, self.needed = call, saved, delta, needed
        self.shape, self.plan = shape, _Plan.of(call, needed, shape)
        self.sizes: tuple[int, ...] = ()  # of the chunk at hand
        self.spec = saved.specialization(call, shape)
        *self.args, _ = call.kernel_args(self.spec, 0)
        self.group = call.heads // call.kv_heads
        self.names = tuple(name for name in call.tables if name in needed)
        self.table_heads = heads_of_tables(call, self.names)
        self.d_q, self.d_k, self.d_v = (
            empty_gradient(name, getattr(call, name)) for name in ("q", "k", "v")
        )
        self.d_q_rel = None
        if call.q_rel is not None and "q_rel" in needed:
            self.d_q_rel = empty_gradient("q_rel", call.q_rel)
        of_queries = self._empty((4, *call.q.shape[:3]))
        of_keys = None
        if "queries" in needed:
            of_keys = self._empty((2, call.batch, call.heads, call.seqlen_k))
        self.end_rows = EndRows(of_queries, of_keys)
        self.in_parts = len(self.plan.ends) > 1
        self.sums_k = self.sums_v = None
        if self.in_parts:
            rows = (1, self.plan.kv_heads, call.seqlen_k)
            self.sums_k, self.sums_v = (self._empty((*rows, x.shape[3])) for x in (call.k, call.v))
        self.rows = self._empty_rows()
        self.rows_of_weights = self._empty_rows() if "values" in needed else None
        blocks = self._blocks_of_rows(self.plan.kv_heads)
        tiles = count_tiles(min(self.plan.queries, call.seqlen_q), shape.m)
        self.table_splits = split_count(blocks, tiles, call.q.device)

    def gradients(self) -> dict[str, Tensor]:
        """By name."""
        call, saved = self.call, self.saved
        tiles = call.batch * call.heads * count_tiles(call.seqlen_q, self.shape.m)
        self._launch(
            delta_kernel, tiles, tiles, token_tensor(saved.out),
            maybe_token_tensor(saved.rounded_off), saved.softmax, token_tensor(saved.d_out),
            saved.d_lse, self.delta, HAS_D_LSE=saved.d_lse is not None,
        )  # fmt: skip
        rows = (self.table_splits, self.table_heads, call.table_window.num_rows)
        sums = {
            name: self._empty((*rows, *call.expanded_tables[name].shape[2:])).zero_()
            for name in self.names
        }
        for chunk in self.plan.chunks(call):
            queries = min(chunk.i_end, call.seqlen_q) - chunk.i_begin
            self.sizes = chunk.kv_heads, queries, chunk.keys
            stored = self._stored(chunk)
            self._run_dkdv(chunk, stored)
            self._run_dq(chunk, stored)
            self._run_dtables(chunk, stored, sums)
        gradients = {"q": self.d_q, "k": self.d_k, "v": self.d_v}
        if self.d_q_rel is not None:
            gradients["q_rel"] = self.d_q_rel
        return gradients | add_end_rows(call, saved, self.end_rows, sums)

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        return self.call.q.new_empty(shape, dtype=torch.float32)

    def _empty_rows(self) -> Tensor:
        """Room for the largest chunk, after a margin of zeros."""
        margin = self.plan.margin
        x = self.call.k.new_empty(margin + self.plan.numbers(self.plan.kv_heads * self.group))
        x[:margin] = 0
        return x

    def _stored(self, chunk: _Chunk) -> StoredScores:
        """Where the kernels find a chunk."""
        d_scores = self._rows(self.rows, chunk)
        weights = None
        if self.rows_of_weights is not None:
            weights = self._rows(self.rows_of_weights, chunk)
        return StoredScores(d_scores, weights, *d_scores.stride()[:2])

    def _rows(self, x: Tensor, chunk: _Chunk) -> Tensor:
        """`(heads, queries, keys)` of a chunk, with zeros for a margin after each row."""
        heads, queries = chunk.kv_heads * self.group, chunk.i_end - chunk.i_begin
        width = chunk.keys + self.plan.margin
        rows = x[self.plan.margin :][: heads * queries * width].view(heads, queries, width)
        rows[:, :, chunk.keys :] = 0
        return rows

    def _blocks_of_rows(self, kv_heads: int, first: int = 0) -> int:
        """How many blocks of n rows the tables have, for key heads from `first` on."""
        blocks = count_tiles(self.call.table_window.num_rows - 2, self.shape.n)
        if self.table_heads == 1:
            return blocks
        batch = self.call.batch
        return blocks * self.group * ((first + kv_heads - 1) // batch - first // batch + 1)

    def _run_dkdv(self, chunk: _Chunk, stored: StoredScores) -> None:
        call, saved = self.call, self.saved
        tiles = call.count_key_tiles(self.spec)
        self._launch(
            dkdv_kernel, chunk.kv_heads * tiles, call.batch * call.kv_heads * tiles, saved.softmax,
            token_tensor(saved.d_out), self.delta, None, None, token_tensor(self.d_k),
            token_tensor(self.d_v), None, self.end_rows.of_keys, stored,
            maybe_token_tensor(self.sums_k), maybe_token_tensor(self.sums_v), chunk.first_kv_head,
            chunk.i_begin, chunk.i_end,
            NEEDS_D_LOGITS=False, NEEDS_D_QUERIES="queries" in self.needed, STORES_D_SCORES=True,
            STORES_WEIGHTS=stored.weights is not None, IN_PARTS=self.in_parts,
        )  # fmt: skip

    def _run_dq(self, chunk: _Chunk, stored: StoredScores) -> None:
        call, splits, i_begin = self.call, self._splits_of_keys(chunk), chunk.i_begin
        i_end = min(chunk.i_end, call.seqlen_q)
        tiles = self._tiles_of_queries(chunk)
        d_q, d_q_rel, end_rows = self.d_q, self.d_q_rel, self.end_rows.of_queries
        if splits > 1:
            shape = (splits, chunk.kv_heads * self.group, i_end - i_begin)
            d_q = self._empty((*shape, d_q.shape[3]))
            d_q_rel = None if d_q_rel is None else self._empty((*shape, d_q_rel.shape[3]))
            end_rows = self._empty((4, *shape))
        self._launch(
            stored_dq_kernel, tiles * splits, tiles, stored, call.batch, chunk.first_kv_head,
            chunk.kv_heads, i_begin, i_end, token_tensor(d_q), maybe_token_tensor(d_q_rel),
            end_rows, splits,
            NEEDS_D_Q_REL=d_q_rel is not None, NEEDS_END_WEIGHTS="values" in self.needed,
            SPLIT=splits > 1,
        )  # fmt: skip
        if splits > 1:
            b, g = chunk.first_kv_head % call.batch, chunk.first_kv_head // call.batch
            heads = slice(g * self.group, (g + chunk.kv_heads) * self.group)
            of_chunk = (b, heads, slice(i_begin, i_end))
            self.d_q[of_chunk] = d_q.sum(0)
            if self.d_q_rel is not None and d_q_rel is not None:
                self.d_q_rel[of_chunk] = d_q_rel.sum(0)
            self.end_rows.of_queries[:, *of_chunk] = end_rows.sum(1)

    def _tiles_of_queries(self, chunk: _Chunk) -> int:
        """The tiles of queries of all heads."""
        queries = min(chunk.i_end, self.call.seqlen_q) - chunk.i_begin
        return chunk.kv_heads * self.group * count_tiles(queries, self.shape.m)

    def _splits_of_keys(self, chunk: _Chunk) -> int:
        """How many programs share the keys of a tile of queries."""
        if self.call.batch > 1 and chunk.kv_heads > 1:  # its heads do not lie side by side
            return 1
        key_tiles = count_tiles(chunk.keys, self.shape.n)
        return split_count(self._tiles_of_queries(chunk), key_tiles, self.call.q.device)

    def _run_dtables(self, chunk: _Chunk, stored: StoredScores, sums: dict[str, Tensor]) -> None:
        call, names = self.call, self.names
        programs = self._blocks_of_rows(chunk.kv_heads, chunk.first_kv_head) * self.table_splits
        if not programs:
            return
        self._launch(
            stored_dtables_kernel, programs, programs, stored, call.batch,
            chunk.first_kv_head, chunk.kv_heads, chunk.i_begin, min(chunk.i_end, call.seqlen_q),
            token_tensor(self.saved.d_out),
            *(sums.get(name) for name in ("keys", "queries", "values")),
            self.table_heads, self.table_splits,
            NEEDS_D_KEYS="keys" in names, NEEDS_D_QUERIES="queries" in names,
            NEEDS_D_VALUES="values" in names,
        )  # fmt: skip

    def _launch(
        self, kernel: object, programs: int, num_tiles: int, *arguments: object, **constants: bool
    ) -> None:
        launch.run_programs(
            kernel, programs, *self.args, num_tiles, *arguments, SPEC=self.spec, **constants,
            shape=self.shape, known=(self.call.plan.known, self.saved.known, self.sizes),
        )  # fmt: skip
