"""Tensors as kernels take them: addresses and strides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..result_layout import empty_as
from .kernel_args import PairTensor, TableTensor, TokenTensor

__all__ = [
    "any_needs_int64",
    "maybe_token_tensor",
    "pair_tensor",
    "table_tensor",
    "token_tensor",
    "with_dense_rows",
]

_INT32 = 1 << 31


def any_needs_int64(tensors: Iterable[Tensor | None]) -> bool:
    """Whether some place in a head of one of those `(b, h, tokens, width)` is beyond 31 bits."""
    for x in tensors:
        if x is not None and x.ndim == 4:
            tokens, width = x.shape[2:]
            if tokens * max(abs(x.stride(2)), width) >= _INT32:
                return True
    return False


def token_tensor(x: Tensor) -> TokenTensor:
    """`x (b, h, tokens, width)`, whose last axis is contiguous."""
    batch, heads, tokens, _ = x.shape
    stride_b, stride_h, stride_n, _ = x.stride()
    return TokenTensor(
        x, stride_b if batch > 1 else 0, stride_h if heads > 1 else 0, stride_n if tokens > 1 else 0
    )


def maybe_token_tensor(x: Tensor | None) -> TokenTensor | None:
    """The same, or None."""
    return None if x is None else token_tensor(x)


def table_tensor(x: Tensor | None) -> TableTensor | None:
    """`x (h or 1, r[, width])`, or None."""
    if x is None:
        return None
    x = x.contiguous()
    return TableTensor(x, _strides(x)[0])


def pair_tensor(mask: Tensor | None) -> PairTensor | None:
    """A mask that broadcasts to `(b, h, i, j)`, or None."""
    if mask is None:
        return None
    return PairTensor(mask.view(torch.uint8) if mask.dtype == torch.bool else mask, *_strides(mask))


def with_dense_rows(x: Any) -> Any:
    """`x (b, h, n, width)` with its last axis contiguous, its heads where they are; or None."""
    if x is None or x.shape[-1] == 1 or x.stride(-1) == 1:
        return x
    return empty_as(x, x.shape).copy_(x)


def _strides(x: Tensor) -> list[int]:
    """0 along axes of size 1."""
    return [stride if size > 1 else 0 for size, stride in zip(x.shape, x.stride(), strict=True)]
