"""The computations of one rank with the keys of some rank: forward, and gradients.

Queries and keys are each one or two runs of the sequence. For each pair of runs the op computes a
part of the rows (`ops/parts.py`), with `query_start` set so that all offsets are those of the
sequence, and with those rows of the tables that these offsets select.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...offsets import call_offsets
from ...ops.dispatch import choose_for_parts
from ...ops.inputs import Inputs, wide_dtype
from ...ops.parts import RowFlow, RowSums
from ...terms import OffsetTable, Terms
from .cut_call import TOKEN_AXES, CutCall, KeyShard

__all__ = ["add_gradients", "add_parts", "own_sums", "shard_sums"]


@dataclass(frozen=True)
class _Block:
    """Some queries of this rank and some keys of another.

    Args:
        inputs: as the op takes them.
        rows: where the queries lie in this rank's shard.
        columns: where the keys lie in the other's.
        key_columns: where they lie in the sequence.
        table_rows: of each table, which rows of it the block has.
    """

    inputs: Inputs
    rows: slice
    columns: slice
    key_columns: slice
    table_rows: dict[str, slice]


def own_sums(call: CutCall, wanted: frozenset[str]) -> dict[str, Tensor]:
    """Zeros in 32 bits at least, for those gradients that stay on this rank.

    Args:
        call: the call.
        wanted: names of gradients, of which those of travelling tensors are not meant.
    """
    local = call.local
    assert isinstance(local.terms, Terms)
    given: dict[str, Tensor | None] = {"q": local.q, "q_rel": local.terms.q_rel}
    given |= {name: table.rows for name, table in local.terms.tables.items()}
    given["mask"] = None if call.mask_travels else local.mask
    return {
        name: torch.zeros(x.shape, dtype=wide_dtype(local.q), device=x.device)
        for name, x in given.items()
        if name in wanted and x is not None
    }


def shard_sums(
    shard: KeyShard, wanted: frozenset[str], spans: tuple[tuple[int, int], ...] | None = None
) -> dict[str, Tensor]:
    """The same for gradients of a rank's keys and what belongs to them.

    Args:
        shard: some rank's keys.
        wanted: names of gradients.
        spans: those of the rank that is meant; None: the shard's.
    """
    shapes = shard.shapes(shard.spans if spans is None else spans)
    k = shard.tensors["k"]
    return {
        name: k.new_zeros(shape, dtype=wide_dtype(k))
        for name, shape in shapes.items()
        if name in wanted
    }


def add_parts(call: CutCall, shard: KeyShard, sums: RowSums) -> None:
    """Take the keys of a rank into this rank's rows."""
    for block in _blocks(call, shard):
        backend = choose_for_parts(call.backend, block.inputs)
        sums.add(backend.part(block.inputs), block.rows.start, block.rows.stop)


def add_gradients(
    call: CutCall,
    shard: KeyShard,
    flow: RowFlow,
    own: dict[str, Tensor],
    of_shard: Callable[[], dict[str, Tensor]],
    wanted: frozenset[str],
) -> None:
    """Add what flows from this rank's rows to themselves, to the tables, and to a rank's keys.

    Args:
        call: the call.
        shard: the keys.
        flow: of this rank's rows.
        own: `own_sums`.
        of_shard: gives `shard_sums`, when something is to be added for the first time.
        wanted: names of all gradients.
    """
    for block in _blocks(call, shard):
        _add_gradients_of_block(call, block, flow, own, of_shard, wanted)


def _add_gradients_of_block(
    call: CutCall,
    block: _Block,
    flow: RowFlow,
    own: dict[str, Tensor],
    of_shard: Callable[[], dict[str, Tensor]],
    wanted: frozenset[str],
) -> None:
    """Add one block's gradients, of which nothing is held when the next one's are computed."""
    rows, columns, inputs = block.rows, block.columns, block.inputs
    backend = choose_for_parts(call.backend, inputs)
    found = backend.part_gradients(inputs, flow.rows(rows.start, rows.stop), wanted)
    sums = of_shard()
    for name, gradient in found.items():
        if name in sums:
            count = columns.stop - columns.start
            part = sums[name].narrow(TOKEN_AXES[name], columns.start, count)
        elif name in block.table_rows:
            part = own[name][:, block.table_rows[name]]
        elif name == "mask":
            part = _of_whole_mask(own[name], rows, block.key_columns)
        else:
            part = own[name][:, :, rows]
        part += gradient


def _blocks(call: CutCall, shard: KeyShard) -> Iterator[_Block]:
    """The pairs of runs of which some pair of tokens takes part."""
    for rows, queries in call.own_queries:
        for columns, keys in shard.runs:
            if call.sees(queries, keys):
                yield _block(call, shard, rows, queries, columns, keys)


def _block(
    call: CutCall,
    shard: KeyShard,
    rows: slice,
    queries: tuple[int, int],
    columns: slice,
    keys: tuple[int, int],
) -> _Block:
    local, (first_query, _), (first_key, end_key) = call.local, queries, keys
    query_start = local.query_start + first_query - first_key
    assert isinstance(local.terms, Terms)
    terms, table_rows = _cut_tables(local, query_start, rows, end_key - first_key)
    key_columns = slice(first_key, end_key)
    mask, k, v = shard.part("mask", columns), shard.part("k", columns), shard.part("v", columns)
    assert k is not None
    assert v is not None
    if local.mask is not None and not call.mask_travels:
        mask = _of_whole_mask(local.mask, rows, key_columns)
    of_queries = local.query_documents
    inputs = replace(
        local,
        q=local.q[:, :, rows],
        k=k,
        v=v,
        terms=terms,
        mask=mask,
        query_start=query_start,
        documents=shard.part("documents", columns),
        query_documents=None if of_queries is None else of_queries[:, rows],
        key_ranges=None if local.key_ranges is None else local.key_ranges[:, rows] - first_key,
        dropout_origin=call.dropout_origin(0, first_query, first_key),
    )
    return _Block(inputs, rows, columns, key_columns, table_rows)


def _cut_tables(
    local: Inputs, query_start: int, rows: slice, keys: int
) -> tuple[Terms, dict[str, slice]]:
    """The terms of some rows, with those rows of the tables that their offsets select."""
    assert isinstance(local.terms, Terms)
    window = local.window[0] if local.window else (None, None)
    first, last = call_offsets(
        query_start, rows.stop - rows.start, keys, causal=local.causal, window=window
    )
    tables: dict[str, OffsetTable] = {}
    table_rows: dict[str, slice] = {}
    for name, table in local.terms.tables.items():
        count = table.rows.shape[1]
        begin, end = (min(max(offset - table.first, 0), count - 1) for offset in (first, last))
        table_rows[name] = slice(begin, end + 1)
        tables[name] = OffsetTable(
            table.rows[:, begin : end + 1], table.first + begin, table.beyond
        )
    q_rel = local.terms.q_rel
    return Terms(**tables, q_rel=None if q_rel is None else q_rel[:, :, rows]), table_rows


def _of_whole_mask(mask: Tensor, rows: slice, key_columns: slice) -> Tensor:
    """A block of a mask whose last axis is that of the whole sequence."""
    return _cut(_cut(mask, 2, rows), 3, key_columns)


def _cut(x: Tensor, axis: int, part: slice) -> Tensor:
    """A part along an axis, unless that is broadcast."""
    return x if x.shape[axis] == 1 else x.narrow(axis, part.start, part.stop - part.start)
