"""How results lie in memory: with the heads where the inputs have them.

A projection cut into heads has these inside the tokens, `(b, i, h, d)` transposed. An output, or a
gradient, that lies so goes into the next projection as it is; SDPA's do likewise.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["empty_as", "empty_gradient"]

_OF_TOKENS = frozenset({"q", "k", "v", "q_rel"})


def empty_as(
    x: Tensor, shape: tuple[int | torch.SymInt, ...], dtype: torch.dtype | None = None
) -> Tensor:
    """Memory for a result `(b, h, n, width)`: heads inside tokens as in `x`, or contiguous.

    Args:
        x: `(b, h, n, ...)`.
        shape: of the result.
        dtype: None: that of `x`.

    >>> empty_as(torch.zeros(1, 5, 2, 4).transpose(1, 2), (1, 2, 5, 3)).stride()
    (30, 3, 6, 1)
    """
    if not _has_heads_inside(x):
        return x.new_empty(shape, dtype=dtype)
    b, h, n, width = shape
    return x.new_empty((b, n, h, width), dtype=dtype).transpose(1, 2)


def empty_gradient(name: str, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for the gradient of an argument `x`, of that name, by the same rule.

    Only `q`, `k`, `v` and `q_rel` have axes of heads and tokens: others' gradients are contiguous.
    """
    if name in _OF_TOKENS:
        return empty_as(x, x.shape, dtype)
    return x.new_empty(x.shape, dtype=dtype)


def _has_heads_inside(x: Tensor) -> bool:
    """As in csrc/op_results.h."""
    of_head, of_token = x.stride(1), x.stride(2)
    if isinstance(of_head, int) and isinstance(of_token, int):
        return 0 < of_head < of_token
    # Imported here alone: torch takes long to import it, and has it where a size is traced.
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # noqa: PLC0415

    return guard_or_false(of_head > 0) and guard_or_false(of_head < of_token)
