"""What ranks with different heads send each other, with gradients: in pairs of opposites.

    forward                          backward
    copy_to_ranks   nothing          the sum of the ranks
    sum_of_ranks    the sum          nothing
    gather_tokens   all tokens       own tokens of the sum
    scatter_sum     own of the sum   all tokens

The first two as f and g of Megatron-LM (Shoeybi et al. 2019, figure 3), the others where tokens are
cut between the layers (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from ..ranks.derivatives import refuse_second_derivatives
from ..ranks.exchange import SpansOfRanks, gather_shards, scatter_sums
from ..ranks.group import Ranks

__all__ = ["copy_to_ranks", "gather_tokens", "scatter_sum", "sum_of_ranks"]

_FUNCTION = "MultiheadAttention"


def copy_to_ranks(x: Tensor, ranks: Ranks) -> Tensor:
    """The same tensor, of which each rank computes a part of the gradient."""
    return _CopyToRanks.apply(x, ranks)


def sum_of_ranks(x: Tensor, ranks: Ranks) -> Tensor:
    """The sum over the ranks, on each of them; the gradient is the same on each."""
    return _SumOfRanks.apply(x, ranks)


def gather_tokens(x: Tensor, ranks: Ranks, axis: int, tokens: SpansOfRanks) -> Tensor:
    """The tokens of all ranks, on each of them, which computes a part of their gradient.

    Args:
        x: this rank's tokens.
        ranks: of the group.
        axis: of the tokens.
        tokens: what each rank has.
    """
    return _GatherTokens.apply(x, ranks, axis, tokens)


def scatter_sum(x: Tensor, ranks: Ranks, axis: int, tokens: SpansOfRanks) -> Tensor:
    """This rank's tokens of the sum over the ranks; arguments as of `gather_tokens`."""
    return _ScatterSum.apply(x, ranks, axis, tokens)


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _summed(d_x, ctx.ranks, "gradients of the input"), None


class _SumOfRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        return _summed(x, ranks, "outputs")

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return d_x, None


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, axis: int, tokens: SpansOfRanks) -> Tensor:
        ctx.where = ranks, axis, tokens
        return _gathered(x, *ctx.where, what="tokens")

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return _scattered(d_x, *ctx.where, what="gradients of tokens"), None, None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, axis: int, tokens: SpansOfRanks) -> Tensor:
        ctx.where = ranks, axis, tokens
        return _scattered(x, *ctx.where, what="outputs")

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return _gathered(d_x, *ctx.where, what="gradients of outputs"), None, None, None


def _summed(x: Tensor, ranks: Ranks, what: str) -> Tensor:
    x = x.contiguous().clone()
    with ranks.exchanging(_FUNCTION, what):
        distributed.all_reduce(x, group=ranks.group)
    return x


def _gathered(x: Tensor, ranks: Ranks, axis: int, tokens: SpansOfRanks, *, what: str) -> Tensor:
    with ranks.exchanging(_FUNCTION, what):
        return torch.cat(gather_shards(ranks, x, axis, tokens), axis)


def _scattered(x: Tensor, ranks: Ranks, axis: int, tokens: SpansOfRanks, *, what: str) -> Tensor:
    with ranks.exchanging(_FUNCTION, what):
        return scatter_sums(ranks, x, axis, tokens)
