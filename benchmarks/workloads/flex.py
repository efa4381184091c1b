"""FlexAttention with relative terms, as its users write them: rivals of the op in the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

__all__ = ["Allows", "flex_bias", "flex_keys", "flex_plain", "not_ahead"]


# Whether a pair takes part, from the numbers of sequence, head, query and key.
Allows = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def not_ahead(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The pairs of causal attention."""
    return i >= j


def flex_plain(allows: Allows) -> Callable[..., Tensor]:
    """Compiled FlexAttention over the pairs of a block mask; forward only on the CPU."""
    run = _flex_attention(allows)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.device.type == "cpu":
            q, k, v = (x.detach() for x in (q, k, v))
        return run(q, k, v, None)

    return attention


def flex_keys(
    *, first: int | None = None, allows: Allows | None = None, beyond: str = "clamp"
) -> Callable[..., Tensor]:
    """Compiled FlexAttention whose score function reads `q rows^T`; forward only on the CPU.

    Args:
        first: the offset of row 0, in tokens; None: offset 0 is in the middle.
        allows: the pairs that take part, by a block mask; None: all.
        beyond: as in `OffsetTable`.
    """
    run = _flex_attention(allows)

    def attention(
        q: Tensor, k: Tensor, v: Tensor, rows: Tensor, q_rel: Tensor | None = None
    ) -> Tensor:
        if q.device.type == "cpu":
            q, k, v, rows = (x.detach() for x in (q, k, v, rows))
        start = -(rows.shape[0] // 2) if first is None else first
        last = rows.shape[0] - 1
        relative = (q if q_rel is None else q_rel) @ rows.mT / sqrt(q.shape[3])

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = j - i - start
            logit = relative[b, h, i, row.clamp(0, last)]
            if beyond == "zero":
                logit = torch.where((row >= 0) & (row <= last), logit, 0.0)
            return s + logit

        return run(q, k, v, score)

    return attention


def flex_bias(
    *, allows: Allows | None = None, entry: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Compiled FlexAttention whose score function reads a bias `(h, rows)`.

    Args:
        allows: the pairs that take part, by a block mask; None: all.
        entry: the row of a pair, from the numbers of query and key; None: its offset, clipped.
    """
    run = _flex_attention(allows)

    def attention(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        if q.device.type == "cpu":
            q, k, v, rows = (x.detach() for x in (q, k, v, rows))
        distance = rows.shape[1] // 2

        def row_of(i: Tensor, j: Tensor) -> Tensor:
            return (j - i).clamp(-distance, distance) + distance

        find = entry or row_of

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + rows[h, find(i, j)]

        return run(q, k, v, score)

    return attention


def _flex_attention(allows: Allows | None = None) -> Callable[..., Tensor]:
    """`flex_attention(q, k, v, score_mod)`, compiled at its first call."""
    compiled: Callable[..., Tensor] | None = None
    arguments: dict[str, Any] = {}

    def run(q: Tensor, k: Tensor, v: Tensor, score: Callable[..., Tensor] | None) -> Tensor:
        nonlocal compiled
        if compiled is None:  # only when it is run: its imports would count as memory
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            compiled = torch.compile(flex_attention, dynamic=False)
            if allows is not None:
                length = q.shape[2]
                arguments["block_mask"] = create_block_mask(
                    allows, None, None, length, length, device=str(q.device)
                )
        return compiled(q, k, v, score_mod=score, **arguments)

    return run
