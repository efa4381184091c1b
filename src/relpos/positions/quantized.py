"""Linear modules of a scheme that somebody has quantized."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["input_dtype"]


def input_dtype(linear: nn.Module, owner: nn.Module, default: torch.dtype) -> torch.dtype:
    """The dtype that a linear module is to be given, where its input is computed and not handed in.

    That of its weight, unless it packs that: torch's quantized modules have a method of that name,
    bitsandbytes' a tensor of integers.

    Args:
        linear: the module.
        owner: the scheme it is a part of, whose other parameters say it then.
        default: where no parameter says it.

    >>> packed = nn.Linear(2, 3).requires_grad_(False)
    >>> packed.weight.data = packed.weight.to(torch.int8)
    >>> input_dtype(packed, packed, torch.float64)  # that of the other one, its bias
    torch.float32
    """
    weight = getattr(linear, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point():
        return weight.dtype
    return next((x.dtype for x in owner.parameters() if x.is_floating_point()), default)
