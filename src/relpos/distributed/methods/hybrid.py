"""Heads along one dimension of a mesh, a ring or a gathering of keys along the other.

As USP (Fang and Zhao 2024). The inner ranks, those along the last dimension, exchange tokens for
heads, as in `heads.py` all ranks do: each then has some heads of the tokens of all of them, and
attends with the outer ranks, those along the first dimension, which have the same heads of other
tokens. So there may be more ranks than heads; and keys travel along a ring of fewer ranks, each
with its heads of them alone.

Inner ranks follow each other, so that in both layouts their tokens together are what the layout
would give to one rank of as many as there are outer ones, but for tokens by which chunks differ.

What a rank sends, with n tokens on each of H inner and R outer ranks, where H divides the heads:
what `heads.py` says of H ranks, and `ring.py` or `gather.py` of R ranks of `H n` tokens each with
`h / H` query and `g / H` key heads.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..layout import runs
from ..ranks.exchange import SpansOfRanks
from .choice import gather_or_ring
from .cut_attention import cut_attention
from .cut_call import CutCall
from .head_exchange import HeadExchange

__all__ = ["hybrid_attention"]


def hybrid_attention(
    call: CutCall, method: str, *, return_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """The output and the log-sum-exp of this rank's queries.

    Args:
        call: over a mesh of two dimensions.
        method: of the outer ranks, `"ring"`, `"gather"` or `"auto"`.
        return_lse: whether the log-sum-exp is asked for.
    """
    assert call.ranks.outer_and_inner is not None
    outer, inner = call.ranks.outer_and_inner
    first = outer.rank * inner.size
    own = slice(first, first + inner.size)
    exchange = HeadExchange(
        call, inner, _among_these(call.queries[own]), _among_these(call.keys[own])
    )
    of_heads = replace(
        call,
        ranks=outer,
        local=exchange.inputs(),
        queries=_of_outer_ranks(call.queries, inner.size),
        keys=_of_outer_ranks(call.keys, inner.size),
        all_ranks=call.ranks,
    )
    output, lse = cut_attention(of_heads, gather_or_ring(of_heads, method))
    given = (output, lse.unsqueeze(-1)) if return_lse else (output,)
    found = exchange.to_tokens(*given)
    return found[0], found[1].squeeze(-1) if return_lse else None


def _among_these(cut: SpansOfRanks) -> SpansOfRanks:
    """The same spans by the numbers that their tokens have among those of these ranks alone.

    >>> _among_these((((2, 4), (10, 12)), ((4, 6), (8, 10))))
    (((0, 2), (6, 8)), ((2, 4), (4, 6)))
    """
    starts, count = {}, 0
    for first, end in sorted(span for own in cut for span in own):
        starts[first] = count
        count += end - first
    return tuple(
        tuple((starts[first], starts[first] + end - first) for first, end in own) for own in cut
    )


def _of_outer_ranks(cut: SpansOfRanks, inner: int) -> SpansOfRanks:
    """What so many inner ranks have together, of each outer one."""
    together = (cut[first : first + inner] for first in range(0, len(cut), inner))
    return tuple(runs(sorted(span for own in ranks for span in own)) for ranks in together)
