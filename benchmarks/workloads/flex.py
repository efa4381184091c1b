"""FlexAttention with relative terms, as its users write them: rivals of the op in the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor

__all__ = ["flex_bias", "flex_keys"]


def flex_keys(
    *, first: int | None = None, causal: bool = False, beyond: str = "clamp"
) -> Callable[..., Tensor]:
    """Compiled FlexAttention whose score function reads `q rows^T`; forward only on the CPU.

    Args:
        first: the offset of row 0, in tokens; None: offset 0 is in the middle.
        causal: whether keys ahead are left out, by a block mask.
        beyond: as in `OffsetTable`.
    """
    run = _flex_attention(causal)

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
    run = _flex_attention(causal=False)

    def attention(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
        distance = rows.shape[1] // 2

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + rows[h, (j - i).clamp(-distance, distance) + distance]

        return run(q, k, v, score)

    return attention


def _flex_attention(causal: bool) -> Callable[..., Tensor]:
    """`flex_attention(q, k, v, score_mod)`, compiled at its first call."""
    compiled: Callable[..., Tensor] | None = None
    arguments: dict[str, Any] = {}

    def run(q: Tensor, k: Tensor, v: Tensor, score: Callable[..., Tensor]) -> Tensor:
        nonlocal compiled
        if compiled is None:  # only when it is run: its imports would count as memory
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            compiled = torch.compile(flex_attention, dynamic=False)
            if causal:
                length = q.shape[2]
                arguments["block_mask"] = create_block_mask(
                    lambda b, h, i, j: i >= j, None, None, length, length, device=str(q.device)
                )
        return compiled(q, k, v, score_mod=score, **arguments)

    return run
