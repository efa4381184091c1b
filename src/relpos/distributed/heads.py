"""Each rank has some heads of the whole sequence: one exchange before the op, and one after.

As DeepSpeed-Ulysses (Jacobs et al. 2023, section 3.1). The op itself is that of one device, so
that whatever it takes, this takes: grids, documents, every mask.

Query heads are cut as `torch.tensor_split` cuts them. A rank needs the key heads that its query
heads read: where several ranks need one, each gets it, and their gradients are summed.

What a rank sends, h query and g key heads, n tokens on each of P ranks, e bytes a number, where P
divides both: forward `(P - 1) / P b n (h (d + dv) + g (d + dv)) e`, backward the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..autocast import without_autocast
from ..ops.dispatch import choose
from ..ops.inputs import prepare, wide_dtype
from ..terms import GridTerms, OffsetTable, Terms
from .agreement import Outcome
from .cut_call import CutCall
from .derivatives import refuse_second_derivatives
from .exchange import SpansOfRanks, all_to_all, gather_shards, scatter_sums
from .group import Ranks
from .layout import in_order

__all__ = ["HeadCut", "heads_attention", "terms_of_heads"]


@dataclass(frozen=True)
class HeadCut:
    """Which heads each rank has.

    Args:
        queries: of each rank the query heads `first..end-1`.
        keys: of each rank the key heads that these read, in order, one for several query heads or
            one for each.
    """

    queries: tuple[range, ...]
    keys: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, heads: int, kv_heads: int, size: int) -> HeadCut:
        """The cut of some query and key heads among `size` ranks.

        >>> HeadCut.of(4, 2, 2)
        HeadCut(queries=(range(0, 2), range(2, 4)), keys=((0,), (1,)))
        >>> HeadCut.of(6, 2, 4).keys
        ((0,), (0, 1), (1,), (1,))
        """
        queries, first = [], 0
        for rank in range(size):
            count = heads // size + (rank < heads % size)
            queries.append(range(first, first + count))
            first += count
        group = heads // kv_heads
        return cls(tuple(queries), tuple(_key_heads(own, group) for own in queries))


def _key_heads(queries: range, group: int) -> tuple[int, ...]:
    """The key heads that some query heads read, one for each of as many query heads."""
    each = [head // group for head in queries]
    distinct = sorted(set(each))
    shared = len(each) // len(distinct) if distinct else 1
    # The op gives the same number of query heads to each key head.
    even = [head for head in distinct for _ in range(shared)] == each
    return tuple(distinct if even else each)


def heads_attention(call: CutCall, *, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """The output and the log-sum-exp of this rank's rows, by exchanging rows against heads.

    Args:
        call: the call.
        return_lse: whether the latter is asked for.
    """
    ranks, local = call.ranks, call.local
    cut = HeadCut.of(local.q.shape[1], local.k.shape[1], ranks.size)
    by_query = tuple(tuple(own) for own in cut.queries)
    own = cut.queries[ranks.rank]

    def of_queries(x: Tensor) -> Tensor:
        return _ToHeads.apply(x, ranks, call.queries, by_query)

    def of_keys(x: Tensor) -> Tensor:
        return _ToHeads.apply(x, ranks, call.keys, cut.keys)

    q, k, v = of_queries(local.q), of_keys(local.k), of_keys(local.v)
    terms = terms_of_heads(local.terms, own, of_queries)
    mask = _mask_of_heads(call, by_query, own)
    documents, of_documents = local.documents, local.query_documents
    key_ranges = local.key_ranges
    with ranks.exchanging("attention", "documents and ranges"):
        if documents is not None:
            documents = _whole(ranks, documents, 1, call.keys)
        if of_documents is not None:
            of_documents = _whole(ranks, of_documents, 1, call.queries)
        if key_ranges is not None:
            key_ranges = _whole(ranks, key_ranges, 1, call.queries)

    outcome = Outcome(ranks, "attention", check=call.check)
    results: list[Tensor] = []

    def compute() -> None:
        inputs = prepare(
            "attention", q, k, v, terms, mask, documents, key_ranges, of_documents,
            causal=local.causal, dropout=local.dropout, scale=local.scale,
            query_start=None if isinstance(terms, GridTerms) else local.query_start,
            window=call.window, softcap=local.softcap, return_lse=True,
        )  # fmt: skip
        if local.dropout:
            origin = call.dropout_origin(own.start)
            inputs = replace(inputs, seed=local.seed, dropout_origin=origin)
        results.extend(choose(call.backend, inputs).attention(inputs))

    with without_autocast(q):
        outcome.attempt(compute)
    outcome.raise_together()
    output, lse = results
    given = (output, lse.unsqueeze(-1)) if return_lse else (output,)
    found = _ToTokens.apply(ranks, call.queries, by_query, *given)
    return found[0], found[1].squeeze(-1) if return_lse else None


def terms_of_heads(
    terms: Terms | GridTerms, own: range, of_q_rel: Callable[[Tensor], Tensor]
) -> Terms | GridTerms:
    """The terms of some heads: tables of each head are cut, shared ones stay as they are.

    Args:
        terms: of all heads.
        own: which heads.
        of_q_rel: gives those of `q_rel`.
    """
    if isinstance(terms, GridTerms):
        joint_bias = terms.joint_bias
        return replace(
            terms,
            axes=tuple(terms_of_heads(axis, own, of_q_rel) for axis in terms.axes),
            joint_bias=None if joint_bias is None else _rows_of_heads(joint_bias, own),
        )
    tables = {
        name: OffsetTable(_rows_of_heads(table.rows, own), table.first, table.beyond)
        for name, table in terms.tables.items()
    }
    return Terms(**tables, q_rel=None if terms.q_rel is None else of_q_rel(terms.q_rel))


def _rows_of_heads(rows: Tensor, own: range) -> Tensor:
    return rows if rows.shape[0] == 1 else rows[own.start : own.stop]


def _mask_of_heads(
    call: CutCall, by_query: tuple[tuple[int, ...], ...], own: range
) -> Tensor | None:
    """The mask of all pairs, for some heads."""
    mask, ranks = call.local.mask, call.ranks
    if mask is None:
        return None
    if call.mask_travels:
        mask = _Gather.apply(mask, ranks, 3, call.keys)
    elif call.mask_has_rows and mask.shape[1] > 1:
        return _ToHeads.apply(mask, ranks, call.queries, by_query)
    elif call.mask_has_rows:
        mask = _Gather.apply(mask, ranks, 2, call.queries)
    return mask if mask.shape[1] == 1 else mask[:, own.start : own.stop]


def _whole(ranks: Ranks, x: Tensor, dim: int, cut: SpansOfRanks) -> Tensor:
    return in_order(gather_shards(ranks, x, dim, cut), dim, cut)


class _Gather(torch.autograd.Function):
    """The whole sequence of some axis on every rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, dim: int, cut: SpansOfRanks) -> Tensor:
        ctx.ranks, ctx.dim, ctx.cut = ranks, dim, cut
        with ranks.exchanging("attention", "masks"):
            return _whole(ranks, x, dim, cut)

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        with ctx.ranks.exchanging("attention", "gradients of masks"):
            return scatter_sums(ctx.ranks, d_whole, ctx.dim, ctx.cut), None, None, None


class _ToHeads(torch.autograd.Function):
    """From all heads of some tokens to some heads of all tokens."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, ranks: Ranks, cut: SpansOfRanks, heads: Sequence[tuple[int, ...]]
    ) -> Tensor:
        ctx.ranks, ctx.cut, ctx.heads, ctx.num_heads = ranks, cut, heads, x.shape[1]
        with ranks.exchanging("attention", "heads"):
            return _to_heads(ranks, x, cut, heads)

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_found: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        with ctx.ranks.exchanging("attention", "gradients of heads"):
            d_x = _to_tokens(ctx.ranks, d_found, ctx.cut, ctx.heads, ctx.num_heads)
        return d_x, None, None, None


class _ToTokens(torch.autograd.Function):
    """The way back, of some `(b, own heads, L, w)` at once: backward all go, whatever was used."""

    @staticmethod
    def forward(
        ctx: Any, ranks: Ranks, cut: SpansOfRanks, heads: Sequence[tuple[int, ...]], *given: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.ranks, ctx.cut, ctx.heads = ranks, cut, heads
        with ranks.exchanging("attention", "heads"):
            return tuple(_to_tokens(ranks, x, cut, heads, sum(map(len, heads))) for x in given)

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, *d_found: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        with ctx.ranks.exchanging("attention", "gradients of heads"):
            d_given = [_to_heads(ctx.ranks, x, ctx.cut, ctx.heads) for x in d_found]
        return None, None, None, *d_given


def _to_heads(
    ranks: Ranks, x: Tensor, cut: SpansOfRanks, heads: Sequence[tuple[int, ...]]
) -> Tensor:
    """`(b, own heads, L, w)` from `(b, h, n, w)`."""
    if ranks.size == 1:
        return x.contiguous()
    counts = [sum(end - first for first, end in own) for own in cut]
    b, _, _, width = x.shape
    given = [x[:, _index(x, own)] for own in heads]
    shapes = [(b, len(heads[ranks.rank]), count, width) for count in counts]
    return in_order(all_to_all(ranks, given, shapes), 2, cut).contiguous()


def _to_tokens(
    ranks: Ranks, x: Tensor, cut: SpansOfRanks, heads: Sequence[tuple[int, ...]], num_heads: int
) -> Tensor:
    """`(b, h, n, w)` from `(b, own heads, L, w)`; what several ranks have of a head is summed."""
    if ranks.size == 1:
        return x.contiguous()
    b, _, _, width = x.shape
    count = sum(end - first for first, end in cut[ranks.rank])
    given = [
        torch.cat([x[:, :, first:end] for first, end in own] or [x[:, :, :0]], 2) for own in cut
    ]
    shapes = [(b, len(own), count, width) for own in heads]
    parts = all_to_all(ranks, given, shapes)
    if [head for own in heads for head in own] == list(range(num_heads)):
        return torch.cat(parts, 1)
    wide = wide_dtype(x)
    found = x.new_zeros((b, num_heads, count, width), dtype=wide)
    for part, own in zip(parts, heads, strict=True):
        found.index_add_(1, torch.tensor(own, device=x.device), part.to(wide))
    return found.to(x.dtype)


def _index(x: Tensor, heads: tuple[int, ...]) -> slice | Tensor:
    """Heads as an index: a slice where they follow each other."""
    if heads == tuple(range(heads[0], heads[0] + len(heads))):
        return slice(heads[0], heads[0] + len(heads))
    return torch.tensor(heads, device=x.device)
