"""What is compared: for each scheme our op, its rivals, the unit, and the exact result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

import rivals
from relpos import GridTerms, OffsetTable, Terms, attention

__all__ = ["Case", "Contender", "cases"]

Run = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Contender:
    """One implementation of a case."""

    name: str
    run: Run
    backward: bool = True  # whether it has one on this device


@dataclass(frozen=True)
class Case:
    """One scheme: what it is compared with, and its tables.

    Args:
        name: of the scheme.
        unit: plain SDPA with the same causality.
        contenders: ours first.
        exact: the result in float64 from float64 inputs.
        tables: the leaves that are learned.
        length: tokens.
    """

    name: str
    unit: Run
    contenders: list[Contender]
    exact: Run
    tables: list[Tensor]
    length: int


Make = Callable[..., Terms | GridTerms]


def _ours(
    make: Make, tables: list[Tensor], causal: bool, documents: Tensor | None, backend: str
) -> Run:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = [table.to(q.dtype) for table in tables]
        return attention(q, k, v, make(*rows), causal=causal, documents=documents, backend=backend)

    return run


def _case(
    name: str,
    length: int,
    tables: list[Tensor],
    make: Make,
    others: list[Contender],
    causal: bool = False,
    documents: Tensor | None = None,
) -> Case:
    return Case(
        name,
        lambda q, k, v: rivals.plain(q, k, v, causal=causal),
        [Contender("relpos tiled", _ours(make, tables, causal, documents, "tiled")), *others],
        _ours(make, tables, causal, documents, "reference"),
        tables,
        length,
    )


def cases(length: int, heads: int, width: int, only_ours: bool = False) -> list[Case]:
    """Every scheme at one length.

    Args:
        length: tokens.
        heads: query heads.
        width: of a head.
        only_ours: leave the rivals out (they need `length ** 2` memory).
    """

    def table(*shape: int) -> Tensor:
        return (torch.randn(*shape) / width**0.5).requires_grad_()

    clipped, clipped_values = table(1, 129, width), table(1, 129, width)
    past, both = table(1, length, width), table(1, 2 * length - 1, width)
    bias = table(heads, 257)

    # The map of as many tokens that is nearest to a square.
    height = next(n for n in range(isqrt(length), 0, -1) if length % n == 0)
    shape = (height, length // height)
    axes = [table(1, 2 * size - 1, width) for size in shape]
    joint = table(heads, *(2 * size - 1 for size in shape))
    documents = torch.arange(length)[None] // (length // 8)

    def on_map(rows: Tensor, columns: Tensor) -> GridTerms:
        tables = [OffsetTable(some, 1 - n) for some, n in zip((rows, columns), shape, strict=True)]
        return GridTerms(shape, tuple(Terms(keys=some) for some in tables))

    def with_rows(function: Callable[..., Tensor], *rows: Tensor) -> Run:
        return lambda q, k, v: function(q, k, v, *(some[0] for some in rows))

    def others(*contenders: Contender) -> list[Contender]:
        return [] if only_ours else list(contenders)

    return [
        _case(
            "Shaw keys, k=64", length, [clipped],
            lambda rows: Terms(keys=OffsetTable(rows, -64)),
            others(
                Contender("FlexAttention", with_rows(rivals.flex(), clipped), backward=False)
            ),
        ),
        _case(
            "Shaw keys + values, k=64", length, [clipped, clipped_values],
            lambda rows, values: Terms(
                keys=OffsetTable(rows, -64), values=OffsetTable(values, -64)
            ),
            others(
                Contender(
                    "literal Shaw", with_rows(rivals.literal_shaw, clipped, clipped_values)
                )
            ),
        ),
        _case(
            "Shaw values, k=64", length, [clipped_values],
            lambda values: Terms(values=OffsetTable(values, -64)), [],
        ),
        _case(
            "queries, k=64 (DeBERTa)", length, [clipped],
            lambda rows: Terms(queries=OffsetTable(rows, -64)),
            others(Contender("gathered", with_rows(rivals.gathered_queries, clipped))),
        ),
        _case(
            "bias per head, k=128 (T5)", length, [bias],
            lambda rows: Terms(bias=OffsetTable(rows, -128)), [],
        ),
        _case(
            "Huang, global, causal", length, [past],
            lambda rows: Terms(keys=OffsetTable(rows, 1 - length)),
            others(Contender("eager skew", with_rows(rivals.eager_skew, past))), causal=True,
        ),
        _case(
            "bidirectional, global", length, [both],
            lambda rows: Terms(keys=OffsetTable(rows, 1 - length)),
            others(
                Contender("pad and reshape", with_rows(rivals.pad_and_reshape, both)),
                Contender("SDPA with a dense bias", with_rows(rivals.dense_bias, both)),
                Contender("FlexAttention", with_rows(rivals.flex(), both), backward=False),
            ),
        ),
        _case(
            "queries, global", length, [both],
            lambda rows: Terms(queries=OffsetTable(rows, 1 - length)),
            others(Contender("gathered", with_rows(rivals.gathered_queries, both))),
        ),
        _case(
            f"grid {shape[0]} x {shape[1]} (SAM)", length, axes, on_map,
            others(Contender("SDPA, dense bias", with_rows(rivals.decomposed_bias, *axes))),
        ),
        _case(
            f"joint bias {shape[0]} x {shape[1]} (Swin)", length, [joint],
            lambda rows: GridTerms(shape, joint=rows), [],
        ),
        _case(
            "8 packed documents, bias", length, [bias],
            lambda rows: Terms(bias=OffsetTable(rows, -128)),
            others(
                Contender(
                    "SDPA, dense mask",
                    lambda q, k, v: rivals.masked_documents(q, k, v, bias, documents),
                )
            ),
            documents=documents,
        ),
    ]  # fmt: skip
