"""How many floating point operations the operators take, for `torch.utils.flop_counter`.

As in torch's formulas a product and its sum count two, and nothing else counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from .arguments import Arguments
from .custom_op import CustomOp
from .native.ops import NATIVE
from .tiled.ops import TILED
from .torch_dispatcher import PLAIN_TENSORS
from .triton.ops import TRITON

__all__ = ["register_flop_formulas"]


def register_flop_formulas() -> None:
    """Have `torch.utils.flop_counter.FlopCounterMode` count the op, in those made from then on.

    Without, it counts none of the operators of relpos. As torch counts SDPA, a query counts with
    every key, whatever `causal`, a mask or ranges of keys leave out, and backward makes the scores
    again. But a query counts with no more keys than its window is wide, and with those of its own
    document, if numbers are at hand. A table adds the products of each query (for `queries`, of
    each key) with its rows, or with as many as there are keys (queries) for it where those are
    fewer; on a grid, along each axis, with one for each coordinate at least. A bias adds none.

    Of the backend `reference` torch counts each product, of all pairs. What `relpos.distributed`
    computes of parts of the keys is not counted.

    >>> from torch.utils.flop_counter import FlopCounterMode
    >>> from relpos import attention
    >>> register_flop_formulas()
    >>> q = k = v = torch.randn(2, 8, 512, 64)
    >>> with FlopCounterMode(display=False) as counter:
    ...     out = attention(q, k, v, causal=True, backend="tiled")
    >>> counter.get_total_flops() == 2 * 2 * (2 * 8 * 512 * 512 * 64)  # scores and output
    True
    """
    # Not at the top: it imports Triton where that is installed, which takes longer than relpos.
    from torch.utils.flop_counter import flop_registry, register_flop_formula  # noqa: PLC0415

    for operator, formula in _formulas():
        if operator not in flop_registry:
            register_flop_formula(operator, get_raw=True)(formula)


def _formulas() -> Iterator[tuple[Any, Callable[..., int]]]:
    """Each operator that is there, and what counts a call of it."""
    for op in (NATIVE, TILED, TRITON):
        for operator in op.operators("forward"):
            yield operator, partial(_forward, op)
        for operator in op.operators("backward"):
            yield operator, partial(_backward, op)
    yield torch.ops.relpos.triton_axis_logits, _axis_logits
    yield torch.ops.relpos.triton_axis_logits_backward, _axis_logits_backward


def _forward(op: CustomOp, *values: Any, out_val: Any = None) -> int:
    flops = _Flops.of(op.named(values))
    return flops.scores + flops.outputs


def _backward(op: CustomOp, *values: Any, out_val: Any = None) -> int:
    _, arguments, wanted = op.unpacked(values)
    flops = _Flops.of(arguments)
    keys_for_q, keys_for_q_rel = flops.keys_of_q, flops.keys_of_q_rel
    keys = keys_for_q + keys_for_q_rel
    of_gradients = {
        "q": flops.content + keys_for_q,
        "q_rel": keys_for_q_rel,
        "k": flops.content + flops.queries,
        "v": flops.weighted,
        "keys": keys,
        "queries": flops.queries,
        "values": flops.values,
        "axis_tables": keys + flops.queries + flops.values,
    }
    of_weights = flops.outputs if wanted - {"v", "values"} else 0
    return flops.scores + of_weights + sum(of_gradients.get(name, 0) for name in wanted)


def _axis_logits(
    q: Tensor,
    rows: Sequence[Tensor],
    grid: Sequence[int],
    prefix: int,
    *_: Any,
    out_val: Any = None,
) -> int:
    batch, heads, queries, width = q.shape
    return 2 * batch * heads * (queries - prefix) * sum(grid) * width


def _axis_logits_backward(
    d_logits: Tensor, q: Tensor, rows: Sequence[Tensor], grid: Sequence[int], prefix: int,
    scale: float, needs_q: bool, needs_rows: bool, out_val: Any = None,
) -> int:  # fmt: skip
    return (needs_q + needs_rows) * _axis_logits(q, rows, grid, prefix)


@dataclass(frozen=True, kw_only=True)
class _Flops:
    """The numbers of products that forward makes.

    Args:
        content: queries with keys.
        weighted: weights with values.
        keys_of_q: queries with tables of keys.
        keys_of_q_rel: other queries (`q_rel`) with them.
        queries: keys with tables of queries.
        values: weights with tables of values.
    """

    content: int
    weighted: int
    keys_of_q: int
    keys_of_q_rel: int
    queries: int
    values: int

    @property
    def scores(self) -> int:
        """The products of all that is summed in a score."""
        return self.content + self.keys_of_q + self.keys_of_q_rel + self.queries

    @property
    def outputs(self) -> int:
        """The products of all that is summed in an output."""
        return self.weighted + self.values

    @classmethod
    def of(cls, call: Arguments) -> _Flops:
        """The products of a call."""
        pairs, width, value_width = _Pairs(call), call.q.shape[3], call.v.shape[3]
        keys, queries, values = _of_axes(call) if call.key_grid else _of_tables(call, pairs)
        return cls(
            content=pairs.flops(width), weighted=pairs.flops(value_width),
            keys_of_q=keys[0], keys_of_q_rel=keys[1], queries=queries, values=values,
        )  # fmt: skip


def _of_tables(call: Arguments, pairs: _Pairs) -> tuple[tuple[int, int], int, int]:
    """The products of a line's tables of keys (with `q`, `q_rel`), queries and values."""
    keys, queries, values = (
        0 if rows is None else pairs.flops(rows.shape[2], rows.shape[1], of_keys=of_keys)
        for rows, of_keys in ((call.keys, False), (call.queries, True), (call.values, False))
    )
    return ((keys, 0) if call.q_rel is None else (0, keys)), queries, values


def _of_axes(call: Arguments) -> tuple[tuple[int, int], int, int]:
    """As `_of_tables`, where a backend multiplies with a grid's tables itself."""
    batch, heads, num_queries, width = call.q.shape
    num_keys, value_width = call.v.shape[2:]
    per_query = 2 * batch * heads * (num_queries - call.prefix)
    per_key = 2 * batch * heads * (num_keys - call.prefix)
    keys, queries, values = [0, 0], 0, 0
    for axis, key_width in enumerate(call.axis_key_widths or ()):
        keys[bool(call.axis_has_q_rel[axis])] += per_query * call.key_grid[axis] * key_width
        queries += per_key * call.query_grid[axis] * width * call.axis_has_queries[axis]
        values += per_query * call.key_grid[axis] * value_width * call.axis_has_values[axis]
    return (keys[0], keys[1]), queries, values


class _Pairs:
    """How many queries there are with how many keys, in all of a batch's documents."""

    def __init__(self, call: Arguments) -> None:
        batch, self._heads, queries, _ = call.q.shape
        keys = call.k.shape[2]
        # Of each part how many there are, its queries, its keys, and those for a query at most.
        self._parts = [
            (batch, call.prefix, keys, keys),
            (batch, queries - call.prefix, keys, _most_keys(call)),
        ]
        given = (call.q, call.documents, call.query_documents)
        if call.documents is not None and batch and all(map(_has_numbers, given)):
            self._parts = [*_documents(call)]

    def flops(self, width: int, rows: int | None = None, *, of_keys: bool = False) -> int:
        """The operations of products of vectors `width` wide.

        Args:
            width: in numbers.
            rows: of a table, in place of the keys (or queries) if they are fewer.
            of_keys: whether the keys are multiplied with a table, else the queries.
        """
        total = 0
        for count, queries, keys, most_keys in self._parts:
            each, others = (keys, queries) if of_keys else (queries, keys)
            most = min(others, most_keys)
            total += count * each * (most if rows is None else min(most, rows))
        return 2 * self._heads * total * width


def _most_keys(call: Arguments) -> int:
    """How many a query has at most, which its window leaves it."""
    sizes = call.key_grid or [call.k.shape[2]]
    is_causal = call.causal and not call.key_grid
    widths = [*sizes]
    for axis, (left, right) in enumerate(call.windows):
        ahead = 0 if is_causal else right
        if left is not None and ahead is not None:
            widths[axis] = min(sizes[axis], left + 1 + ahead)
    return call.prefix + prod(widths)


def _has_numbers(x: Tensor | None) -> bool:
    return x is None or (type(x) in PLAIN_TENSORS and not x.is_meta)


def _documents(call: Arguments) -> Iterator[tuple[int, int, int, int]]:
    """The parts of `_Pairs`, by document and row of the batch."""
    batch, documents, of_queries = call.q.shape[0], call.documents, call.query_documents
    assert documents is not None
    if of_queries is None:
        of_queries = documents[:, call.query_start : call.query_start + call.q.shape[2]]
    rows, most_keys = max(documents.shape[0], of_queries.shape[0]), _most_keys(call)
    pairs = zip(of_queries.expand(rows, -1), documents.expand(rows, -1), strict=True)
    for row_of_queries, row_of_keys in pairs:
        queries, keys = (Counter(row.tolist()) for row in (row_of_queries, row_of_keys))
        for document, count in keys.items():
            if document >= 0:  # negative numbers are no documents
                yield batch // rows, queries[document], count, most_keys
