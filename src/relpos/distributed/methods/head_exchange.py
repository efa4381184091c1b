"""Tokens in exchange for heads: from all heads of some tokens to some heads of all, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...ops.inputs import Inputs, wide_dtype
from ..layout import in_order
from ..ranks.derivatives import refuse_second_derivatives
from ..ranks.exchange import SpansOfRanks, all_to_all, gather_shards, scatter_sums
from ..ranks.group import Ranks
from .cut_call import CutCall
from .head_cut import HeadCut, terms_of_heads

__all__ = ["HeadExchange"]


@dataclass(frozen=True)
class HeadExchange:
    """The tokens and heads that some ranks exchange.

    Args:
        call: of which each of them has all heads.
        ranks: that exchange.
        queries: the spans of each, in the numbers of what these ranks have together.
        keys: likewise.
    """

    call: CutCall
    ranks: Ranks
    queries: SpansOfRanks
    keys: SpansOfRanks

    @cached_property
    def cut(self) -> HeadCut:
        """Which heads each rank gets."""
        local = self.call.local
        return HeadCut.of(local.q.shape[1], local.k.shape[1], self.ranks.size)

    def inputs(self) -> Inputs:
        """This rank's heads of the tokens of all: the call's other settings stay as they are."""
        local, ranks, own = self.call.local, self.ranks, self.cut.queries[self.ranks.rank]
        documents, of_documents = local.documents, local.query_documents
        key_ranges = local.key_ranges
        q, k, v = self._of_queries(local.q), self._of_keys(local.k), self._of_keys(local.v)
        terms = terms_of_heads(local.terms, own, self._of_queries)
        mask = self._mask(own)
        with ranks.exchanging("attention", "documents and ranges"):
            if documents is not None:
                documents = _whole(ranks, documents, 1, self.keys)
            if of_documents is not None:
                of_documents = _whole(ranks, of_documents, 1, self.queries)
            if key_ranges is not None:
                key_ranges = _whole(ranks, key_ranges, 1, self.queries)
        return replace(
            local, q=q, k=k, v=v, terms=terms, mask=mask, documents=documents,
            query_documents=of_documents, key_ranges=key_ranges,
            dropout_origin=self.call.dropout_origin(own.start),
        )  # fmt: skip

    def to_tokens(self, *given: Tensor) -> tuple[Tensor, ...]:
        """All heads of this rank's queries, from `(b, own heads, i, w)` of the queries of all."""
        return _ToTokens.apply(self.ranks, self.queries, self._by_query, *given)

    @cached_property
    def _by_query(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(own) for own in self.cut.queries)

    def _of_queries(self, x: Tensor) -> Tensor:
        return _ToHeads.apply(x, self.ranks, self.queries, self._by_query)

    def _of_keys(self, x: Tensor) -> Tensor:
        return _ToHeads.apply(x, self.ranks, self.keys, self.cut.keys)

    def _mask(self, own: range) -> Tensor | None:
        """The mask of some heads; its columns are the keys of these ranks, or all there are."""
        call, ranks = self.call, self.ranks
        mask = call.local.mask
        if mask is None:
            return None
        if call.mask_travels:
            mask = _Gather.apply(mask, ranks, 3, self.keys)
        elif call.mask_has_rows and mask.shape[1] > 1:
            return _ToHeads.apply(mask, ranks, self.queries, self._by_query)
        elif call.mask_has_rows:
            mask = _Gather.apply(mask, ranks, 2, self.queries)
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
