"""The arguments of every backend's operators, declared once.

To give the op another argument: a field of `Inputs`, a field of the same name here, and what each
backend makes of it. Schemas, shapes for tracing and derivatives follow (`custom_op.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..terms import OffsetTable, Terms
from .inputs import Inputs, wide_dtype
from .locality import Window

__all__ = [
    "AXIS_LOGITS",
    "AXIS_TABLES",
    "DECLARED",
    "LINE_TENSORS",
    "TABLES",
    "Arguments",
    "Flow",
    "arguments_of",
    "mask_as_read",
    "schema_argument",
    "schema_type",
]

TABLES = ("keys", "queries", "bias", "values")

# Marks a tensor that can take a gradient, with the dtype in which operators return it: that of `q`,
# or with 32 bits at least for what is added to scores, in whatever dtype it is.
_OWN = {"gradient": "own"}
_WIDE = {"gradient": "wide"}


@dataclass(kw_only=True)
class Arguments:
    """What torch hands to a backend's operators; backends read it by name.

    Tensors come first. Then what many calls set comes before what few do, and numbers before
    lists: a call ends with the last that is set, and torch takes the longest to convert lists.

    Args:
        q: `(b, h, i, d)`.
        k: `(b, g, j, d)`.
        v: `(b, g, j, dv)`.
        keys: the rows of the tables of `Terms`; on a grid None.
        queries: see `keys`.
        bias: see `keys`.
        values: see `keys`.
        q_rel: `(b, h, i, d_rel)`; on a grid those of the axes that have one, side by side.
        mask: four axes, each full or 1.
        axis_tables: `(h or 1, n)`, a grid's rows of keys, queries, bias and values, all numbers in
            one line (`axis_terms.axis_tables`).
        key_axis_logits: `(b or 1, h or 1, i, sum of key_grid)`, a grid's relative logits of each
            query per axis, by the coordinate of the key.
        query_axis_logits: `(b, h, j, sum of query_grid)`, those of each key by the coordinate of
            the query.
        joint_bias: `(h or 1, r)`, a grid's joint bias, flat.
        documents: `(b or 1, j)`.
        query_documents: `(b or 1, i)`; None: those of `documents` at the queries' positions.
        key_ranges: `(b or 1, i, 2)` in int64, the keys `lo..hi-1` of each query.
        axis_ranges: `(b or 1, sum of query_grid, 2)` in int64, on a grid: the coordinates
            `lo..hi-1` of keys that each coordinate of queries sees, one axis after another.
        seed: of the dropout, int64.
        scale: of the content, `keys` and `queries` scores.
        causal: whether keys ahead of the query are left out.
        query_start: position of the first query, in tokens.
        first_offsets: of each table, its first row's offset; empty without tables.
        dropout: probability.
        softcap: c of `c tanh(s / c)`; 0 without one.
        split_float32: whether factors in float32 may be split into two bfloat16 numbers each.
        return_lse: whether the log-sum-exp is asked for.
        need_axis_weights: whether the weights are, summed over the keys of each coordinate.
        prefix: tokens before the grid.
        window: of each axis (of a line, one) left and right, -1 for no limit; empty without one.
        zero_beyond: of each table, 1 where offsets outside it are zero; empty where of none.
        key_grid: sizes of the axes; on a line empty.
        query_grid: see `key_grid`.
        axis_key_widths: of each axis, the width of its keys' rows, 0 without.
        axis_has_q_rel: of each axis, 1 where it has a `q_rel`.
        axis_has_queries: of each axis, 1 where it has such a table.
        axis_has_bias: see `axis_has_queries`.
        axis_has_values: see `axis_has_queries`.
        dropout_origin: where the call lies in one of which it is a part (`inputs.DropoutOrigin`),
            empty for a whole one.
        has_other_keys: whether the rows have other keys too, so that backward goes by the softmax
            and the output over all of them.
    """

    q: Tensor = field(metadata=_OWN)
    k: Tensor = field(metadata=_OWN)
    v: Tensor = field(metadata=_OWN)
    keys: Tensor | None = field(default=None, metadata=_OWN)
    queries: Tensor | None = field(default=None, metadata=_OWN)
    bias: Tensor | None = field(default=None, metadata=_OWN)
    values: Tensor | None = field(default=None, metadata=_OWN)
    q_rel: Tensor | None = field(default=None, metadata=_OWN)
    mask: Tensor | None = field(default=None, metadata=_WIDE)
    axis_tables: Tensor | None = field(default=None, metadata=_WIDE)
    key_axis_logits: Tensor | None = field(default=None, metadata=_WIDE)
    query_axis_logits: Tensor | None = field(default=None, metadata=_WIDE)
    joint_bias: Tensor | None = field(default=None, metadata=_WIDE)
    documents: Tensor | None = None
    query_documents: Tensor | None = None
    key_ranges: Tensor | None = None
    axis_ranges: Tensor | None = None
    seed: Tensor | None = None
    scale: float = 1.0
    causal: bool = False
    query_start: int = 0
    first_offsets: Sequence[int] = ()
    dropout: float = 0.0
    softcap: float = 0.0
    split_float32: bool = False
    return_lse: bool = False
    need_axis_weights: bool = False
    prefix: int = 0
    window: Sequence[int] = ()
    zero_beyond: Sequence[int] = ()
    key_grid: Sequence[int] = ()
    query_grid: Sequence[int] = ()
    axis_key_widths: Sequence[int] = ()
    axis_has_q_rel: Sequence[int] = ()
    axis_has_queries: Sequence[int] = ()
    axis_has_bias: Sequence[int] = ()
    axis_has_values: Sequence[int] = ()
    dropout_origin: Sequence[int] = ()
    has_other_keys: bool = False

    #: Equal for calls that are alike in all but the numbers in their tensors, in how these lie too;
    #: None where nobody has compared. Not an argument of operators.
    alike: ClassVar[int | None] = None

    @cached_property
    def terms(self) -> Terms:
        """The tables of a line of tokens: the call's own, where `arguments_of` has them."""
        rows, zeros = (self.keys, self.queries, self.bias, self.values), [0] * len(TABLES)
        tables = {
            name: OffsetTable(table, first, "zero" if zero else "clamp")
            for name, table, first, zero in zip(
                TABLES, rows, self.first_offsets or zeros, self.zero_beyond or zeros, strict=True
            )
            if table is not None
        }
        return Terms(**tables, q_rel=self.q_rel)

    @property
    def windows(self) -> tuple[Window, ...]:
        """`(left, right)` of each axis, None for no limit, as `Inputs` has them."""
        sides = [None if side < 0 else side for side in self.window]
        return tuple(zip(sides[::2], sides[1::2], strict=True))

    @property
    def wide(self) -> torch.dtype:
        """The dtype of `q` with 32 bits at least."""
        return wide_dtype(self.q)


@dataclass(slots=True, kw_only=True)
class Flow:
    """What flows into a backward pass, and what it kept of the forward pass.

    Args:
        d_output: as the output, which may be in another dtype.
        d_lse: `(b, h, i)`, or None.
        d_axis_weights: `(b, h, i, sum of key_grid)`, or None.
        saved: the results that the backend saves, in its order.
    """

    d_output: Tensor
    d_lse: Tensor | None
    d_axis_weights: Tensor | None
    saved: tuple[Tensor, ...]


DECLARED = {declared.name: declared for declared in fields(Arguments)}
# Those of a line of tokens without documents and ranges of keys, with which operators begin.
LINE_TENSORS = ("q", "k", "v", *TABLES, "q_rel", "mask")
# Of a grid: what a backend is told that is given the relative logits per axis, and what one that
# computes them from the tables.
AXIS_LOGITS = ("key_axis_logits", "query_axis_logits", "need_axis_weights")
AXIS_TABLES = (
    "axis_tables", "axis_key_widths", "axis_has_q_rel", "axis_has_queries", "axis_has_bias",
    "axis_has_values",
)  # fmt: skip

# Fields of `Inputs` that operators are given as they are.
_AS_GIVEN = (
    "q", "k", "v", "causal", "mask", "scale", "query_start", "documents", "query_documents",
    "key_ranges", "axis_ranges", "return_lse",
)  # fmt: skip
_SCHEMA_TYPES = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    # Optional, since AOTInductor makes None of an empty list.
    "Sequence[int]": "SymInt[]?",
    "int": "SymInt",
    "float": "float",
    "bool": "bool",
}


def schema_type(name: str) -> str:
    """The type of an argument in the language of torch's schemas.

    >>> schema_type("mask")
    'Tensor?'
    """
    return _SCHEMA_TYPES[str(DECLARED[name].type)]


def schema_argument(name: str) -> str:
    """An argument with its default, as torch prints it.

    >>> [schema_argument(name) for name in ("q", "mask", "scale", "window")]
    ['Tensor q', 'Tensor? mask=None', 'float scale=1.', 'SymInt[]? window=None']
    """
    default = DECLARED[name].default
    argument = f"{schema_type(name)} {name}"
    if default is MISSING:
        return argument
    if isinstance(default, float):
        return f"{argument}={str(default).removesuffix('0')}"
    return f"{argument}={None if default == () else default}"


def mask_as_read(mask: Tensor, q: Tensor) -> Tensor:
    """Backends read a mask in no more bits than they compute with."""
    is_wider = mask.dtype == torch.float64 and q.dtype != torch.float64
    return mask.float() if is_wider else mask


def arguments_of(inputs: Inputs, **of_backend: Any) -> Arguments:
    """The arguments of a call.

    Args:
        inputs: the call.
        of_backend: what a backend makes of the tables of a grid, and what it alone is told.
    """
    given: dict[str, Any] = {name: getattr(inputs, name) for name in _AS_GIVEN}
    if inputs.window:
        given["window"] = [
            -1 if side is None else side for sides in inputs.window for side in sides
        ]
    if inputs.dropout:
        given["dropout"] = inputs.dropout
        given["seed"] = inputs.seed
        if inputs.dropout_origin is not None:
            given["dropout_origin"] = [*inputs.dropout_origin]
    if inputs.softcap:
        given["softcap"] = inputs.softcap
    given |= of_backend
    terms, mask = inputs.terms, inputs.mask
    if isinstance(terms, Terms):
        first_offsets, zero_beyond = [0] * len(TABLES), [0] * len(TABLES)
        for number, name in enumerate(TABLES):
            table: OffsetTable | None = getattr(terms, name)
            if table is not None:
                given[name], first_offsets[number] = table.rows, table.first
                given["first_offsets"] = first_offsets
                if table.beyond == "zero":
                    zero_beyond[number] = 1
                    given["zero_beyond"] = zero_beyond
        given["q_rel"] = terms.q_rel
    else:
        given["key_grid"], given["query_grid"] = list(terms.shape), list(terms.query_grid)
        given["prefix"] = terms.prefix
    if mask is not None:
        given["mask"] = mask_as_read(mask, inputs.q)
    arguments = Arguments(**given)
    if isinstance(terms, Terms):
        arguments.terms = terms
    return arguments
