"""The tokens beside those of this rank, for convolutions and what else looks to either side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ranks.derivatives import refuse_second_derivatives
from ..ranks.exchange import Transfer
from ..ranks.group import Ranks
from ..ranks.not_compiled import not_compiled

__all__ = ["with_neighbours"]


@not_compiled
def with_neighbours(x: Tensor, ranks: Ranks, width: int, dim: int = 1) -> tuple[Tensor, int]:
    """`x` with up to `width` tokens before and after it, and how many there are before.

    Those of the ranks beside this one, in the layout `"contiguous"`; at both ends of the sequence
    there are none.

    Args:
        x: this rank's tokens, at least `width` of them on each rank.
        ranks: of the group.
        width: in tokens.
        dim: the axis of the tokens.

    Raises:
        ValueError: if there are fewer tokens than `width`.
    """
    if x.shape[dim] < width:
        raise ValueError(
            f"with_neighbours: x must have at least {width} tokens on each rank, got {x.shape[dim]}"
        )
    if ranks.size == 1 or width == 0:
        return x, 0
    found = _Neighbours.apply(x, ranks, width, dim)
    return found, width if ranks.rank else 0


class _Neighbours(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, width: int, dim: int) -> Tensor:
        ctx.ranks, ctx.width, ctx.dim = ranks, width, dim
        first, last = x.narrow(dim, 0, width), x.narrow(dim, x.shape[dim] - width, width)
        with ranks.exchanging("with_neighbours", "tokens beside each other"):
            before, after = _beside(ranks, to_next=last, to_last=first)
        parts = [before] * (ranks.rank > 0) + [x] + [after] * (ranks.rank < ranks.size - 1)
        return torch.cat(parts, dim)

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_found: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        ranks, width, dim = ctx.ranks, ctx.width, ctx.dim
        left, right = width * (ranks.rank > 0), width * (ranks.rank < ranks.size - 1)
        count = d_found.shape[dim] - left - right
        d_x = d_found.narrow(dim, left, count).clone()
        zeros = torch.zeros_like(d_x.narrow(dim, 0, width))
        d_before = d_found.narrow(dim, 0, width) if left else zeros
        d_after = d_found.narrow(dim, left + count, width) if right else zeros
        with ranks.exchanging("with_neighbours", "gradients of tokens beside each other"):
            # What flows to a neighbour's last tokens goes back to it, and so with the first.
            d_first, d_last = _beside(ranks, to_next=d_after, to_last=d_before)
        if left:
            d_x.narrow(dim, 0, width).add_(d_first)
        if right:
            d_x.narrow(dim, count - width, width).add_(d_last)
        return d_x, None, None, None


def _beside(ranks: Ranks, *, to_next: Tensor, to_last: Tensor) -> tuple[Tensor, Tensor]:
    """What the last rank gives to its next one, and the next rank to its last."""
    transfers = [
        Transfer(
            ranks, {"x": x}, {"x": torch.empty_like(x, memory_format=torch.contiguous_format)},
            steps=steps, kind="neighbours",
        )
        for x, steps in ((to_next, 1), (to_last, -1))
    ]  # fmt: skip
    before, after = (transfer.wait()["x"] for transfer in transfers)
    return before, after
