"""FlexAttention with relative terms, as its users write them: rivals of the op in the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

__all__ = ["Allows", "flex_bias", "flex_keys", "flex_plain", "flex_score", "not_ahead"]


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


def flex_bias() -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Compiled FlexAttention whose score function reads a clipped bias `(h, rows)`."""
    run = _flex_attention()

    def attention(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        distance = rows.shape[1] // 2

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + rows[h, (j - i).clamp(-distance, distance) + distance]

        return run(q, k, v, score)

    return attention


def flex_score(
    score_of: Callable[[Tensor], Callable[..., Tensor]],
    *,
    allows: Allows,
    rows: Callable[[Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Compiled FlexAttention with a score function of one's own; forward only on the CPU.

    Args:
        score_of: the score function, from the biases.
        allows: the pairs that take part.
        rows: the biases, from the queries.
    """
    run = _flex_attention(allows)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        biases = rows(q)
        if q.device.type == "cpu":
            q, k, v, biases = (x.detach() for x in (q, k, v, biases))
        return run(q, k, v, score_of(biases))

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
