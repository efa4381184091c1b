"""Models in float64 that would round to float32 on their way, kept from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["unrounded"]

_float = Tensor.float
_plain_softmax = functional.softmax


@contextmanager
def unrounded() -> Iterator[None]:
    """A context in which what is float64 stays so where float32 is asked for."""
    with (
        patch.object(Tensor, "float", _kept(_float)),
        patch.object(Tensor, "to", _kept(Tensor.to)),
        patch.object(functional, "softmax", _softmax),
        patch.object(torch, "_grouped_mm", _grouped_mm),
    ):
        yield


def _kept(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def kept(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype != torch.float64:
            return function(x, *args, **kwargs)
        if function is _float:
            return x
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return function(x, *args, **kwargs)

    return kept


def _softmax(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if input.dtype == torch.float64 and kwargs.get("dtype") is torch.float32:
        kwargs["dtype"] = torch.float64
    return _plain_softmax(input, *args, **kwargs)


# PyTorch has none for float64.
def _grouped_mm(x: Tensor, weights: Tensor, *, offs: Tensor, **_: Any) -> Tensor:
    """The rows up to each offset by the weights of its expert."""
    ends = offs.tolist()
    parts = [
        x[start:end] @ weight for start, end, weight in zip([0, *ends], ends, weights, strict=False)
    ]
    return torch.cat([*parts, x.new_zeros(len(x) - ends[-1], weights.shape[-1])])
