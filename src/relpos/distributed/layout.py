"""How a sequence is cut among the ranks, and how its shards are made and put together again.

- `"zigzag"`: the sequence is cut into 2P chunks, of which rank `r` holds chunks `r` and `2P-1-r`,
  one after the other: under a causal mask all ranks then have the same work. It is the order of
  torch's own load balancer of heads and tails.
- `"contiguous"`: rank `r` holds chunk `r` of P.

Chunks that cannot be equal differ by one token, the longer ones first, as by `torch.tensor_split`.
Keys of another sequence, such as a short text, may also be `"whole"`, the same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..checks import check_count, check_tensor, one_line
from ..errors import ShapeError
from .ranks.agreement import agree
from .ranks.derivatives import refuse_second_derivatives
from .ranks.exchange import gather_shards, scatter_sums
from .ranks.facts import described
from .ranks.group import AnyGroup, Ranks, rank_and_size, resolve_group
from .ranks.not_compiled import not_compiled

__all__ = [
    "KeyLayout",
    "Layout",
    "Span",
    "check_key_layout",
    "check_layout",
    "in_order",
    "placed",
    "runs",
    "shard",
    "spans",
    "spans_of_ranks",
    "spans_of_shards",
    "unshard",
]

Layout = Literal["zigzag", "contiguous"]
KeyLayout = Literal["zigzag", "contiguous", "whole"]
Span = tuple[int, int]  # tokens `first..end-1` of the sequence


def spans(
    length: int, group: AnyGroup, layout: Layout = "zigzag", *, rank: int | None = None
) -> list[Span]:
    """The tokens that a rank holds, as runs `first..end-1` in the order in which they lie there.

    Args:
        length: of the whole sequence, in tokens.
        group: the ranks.
        layout: `"zigzag"` or `"contiguous"`.
        rank: within the group; None: this process's.

    Returns:
        Two runs at most; none for a rank without a token.

    Raises:
        ValueError: if an argument is out of range.
    """
    own, size = rank_and_size("spans", group)
    length = check_count("spans", "length", length, least=0)
    check_layout("spans", "layout", layout)
    rank = own if rank is None else check_count("spans", "rank", rank, least=0)
    if rank >= size:
        raise ValueError(f"spans: rank must be below {size}, the size of the group, got {rank}")
    return list(spans_of_ranks(length, size, layout)[rank])


def shard(
    x: Shaped[Tensor, "..."], group: AnyGroup, layout: Layout = "zigzag", dim: int = 1
) -> Shaped[Tensor, "..."]:
    """This rank's tokens of `x`, a new tensor.

    Args:
        x: the whole sequence, the same on every rank.
        group: the ranks.
        layout: `"zigzag"` or `"contiguous"`.
        dim: the axis of the tokens: 1 for `(b, i, e)` or `(b, i)`, 2 for `(b, h, i, d)`.

    Raises:
        TypeError: if `x` is no tensor.
        ValueError: if an argument is out of range.
    """
    rank, size = rank_and_size("shard", group)
    dim = _check_axis("shard", x, dim)
    check_layout("shard", "layout", layout)
    own = spans_of_ranks(x.shape[dim], size, layout)[rank]
    return torch.cat([x.narrow(dim, first, end - first) for first, end in own or ((0, 0),)], dim)


@not_compiled
def unshard(
    x: Shaped[Tensor, "..."], group: AnyGroup, layout: Layout = "zigzag", dim: int = 1
) -> Shaped[Tensor, "..."]:
    """The whole sequence on every rank, from the shard of each: undoes `shard`.

    The gradient of a shard is the sum over all ranks of what each does with the whole. Where every
    rank computes the same loss of it, that is P times the loss's own.

    Args:
        x: this rank's shard.
        group: the ranks.
        layout: `"zigzag"` or `"contiguous"`.
        dim: the axis of the tokens.

    Raises:
        TypeError: if `x` is no tensor.
        ShapeError: if shards are not cut as `shard` cuts them.
        ValueError: if an argument is out of range, or differs from that of another rank.
        RuntimeError: on every rank, if one of them fails or does not answer.
    """
    ranks = resolve_group("unshard", group, most_dims=2)
    facts, numbers, error = {}, (0,), None
    try:
        dim = _check_axis("unshard", x, dim)
        check_layout("unshard", "layout", layout)
        facts, numbers = _facts(x, layout, dim), (x.shape[dim],)
    except Exception as found:
        error = found
    counts = [count for (count,) in agree(ranks, "unshard", facts, numbers, error)]
    cut, _ = spans_of_shards("unshard", "x", counts, layout)
    return _Unshard.apply(x, ranks, cut, dim)


def _facts(x: Tensor, layout: Layout, dim: int) -> dict[str, object]:
    """What must be the same on every rank."""
    return {"layout": layout, "dim": dim, "x": described(x, {dim: "tokens"})}


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, ranks: Ranks, cut: tuple[tuple[Span, ...], ...], dim: int
    ) -> Tensor:
        ctx.ranks, ctx.cut, ctx.dim = ranks, cut, dim
        with ranks.exchanging("unshard", "shards"):
            return in_order(gather_shards(ranks, x, dim, cut), dim, cut)

    @staticmethod
    @refuse_second_derivatives
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        with ctx.ranks.exchanging("unshard", "gradients"):
            return scatter_sums(ctx.ranks, d_whole, ctx.dim, ctx.cut), None, None, None


def in_order(shards: Sequence[Tensor], dim: int, cut: Sequence[Sequence[Span]]) -> Tensor:
    """The shards of all ranks as one sequence.

    Args:
        shards: of each rank.
        dim: the axis of the tokens.
        cut: the spans of each rank.
    """
    found: list[tuple[int, Tensor]] = []
    for x, own in zip(shards, cut, strict=True):
        at = 0
        for first, end in own:
            found.append((first, x.narrow(dim, at, end - first)))
            at += end - first
    if not found:
        return shards[0]
    return torch.cat([x for _, x in sorted(found, key=lambda pair: pair[0])], dim)


def spans_of_ranks(length: int, size: int, layout: KeyLayout) -> tuple[tuple[Span, ...], ...]:
    """What each of `size` ranks holds.

    Args:
        length: in tokens.
        size: P.
        layout: `"zigzag"`, `"contiguous"` or `"whole"`.

    >>> spans_of_ranks(8, 2, "zigzag")
    (((0, 2), (6, 8)), ((2, 6),))
    >>> spans_of_ranks(7, 2, "contiguous")
    (((0, 4),), ((4, 7),))
    """
    if layout == "whole":
        return (runs([(0, length)]),) * size
    count = 2 * size if layout == "zigzag" else size
    ends = [0]
    for chunk in range(count):
        ends.append(ends[-1] + length // count + (chunk < length % count))
    chunks = [(ends[n], ends[n + 1]) for n in range(count)]
    if layout == "contiguous":
        return tuple(runs([chunk]) for chunk in chunks)
    return tuple(runs([chunks[rank], chunks[count - 1 - rank]]) for rank in range(size))


def runs(chunks: Iterable[Span]) -> tuple[Span, ...]:
    """Chunks without empty ones, neighbours as one."""
    found: list[Span] = []
    for first, end in chunks:
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        elif first < end:
            found.append((first, end))
    return tuple(run for run in found if run[0] < run[1])


def placed(spans: Sequence[Span]) -> list[tuple[slice, Span]]:
    """Each span with where it lies in its shard."""
    found, at = [], 0
    for first, end in spans:
        found.append((slice(at, at + end - first), (first, end)))
        at += end - first
    return found


def check_layout(function: str, argument: str, layout: object) -> None:
    """Raise a ValueError unless it is a layout."""
    if not isinstance(layout, str) or layout not in ("zigzag", "contiguous"):
        raise ValueError(
            f"{function}: {argument} must be 'zigzag' or 'contiguous', got {one_line(layout)}"
        )


def check_key_layout(function: str, layout: object) -> None:
    """Raise a ValueError unless it is a layout of keys, or None."""
    if layout is not None and (
        not isinstance(layout, str) or layout not in ("zigzag", "contiguous", "whole")
    ):
        raise ValueError(
            f"{function}: key_layout must be None, 'zigzag', 'contiguous' or 'whole', "
            f"got {one_line(layout)}"
        )


def spans_of_shards(
    function: str, argument: str, counts: Sequence[int], layout: KeyLayout
) -> tuple[tuple[tuple[Span, ...], ...], int]:
    """What each rank holds, and how many tokens the sequence has.

    Args:
        function: the public function.
        argument: of it, of which the shards are.
        counts: the tokens of each rank's.
        layout: how they are said to be cut.

    Raises:
        ShapeError: unless every rank has as many tokens as that gives it.
    """
    if layout == "whole":
        if len(set(counts)) > 1:
            raise ShapeError(
                f"{function}: {argument} must be whole, with the same tokens on every rank, got "
                f"{', '.join(map(str, counts))} of them"
            )
        return spans_of_ranks(counts[0], len(counts), layout), counts[0]
    cut = spans_of_ranks(sum(counts), len(counts), layout)
    for rank, (count, own) in enumerate(zip(counts, cut, strict=True)):
        wanted = sum(end - first for first, end in own)
        if count != wanted:
            raise ShapeError(
                f"{function}: {argument} must be cut as relpos.distributed.shard cuts "
                f"{sum(counts)} tokens, {wanted} of them on rank {rank}, got {count} there"
            )
    return cut, sum(counts)


def _check_axis(function: str, x: Tensor, dim: object) -> int:
    check_tensor(function, "x", x)
    if isinstance(x, DTensor):
        raise TypeError(
            f"{function}: x must be a plain tensor, such as to_local() gives, got DTensor"
        )
    dim = check_count(function, "dim", dim, least=None)
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(
            f"{function}: dim must be an axis of x, whose shape is {tuple(x.shape)}, got {dim}"
        )
    return dim % x.ndim
