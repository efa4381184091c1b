"""Linear modules of a scheme that somebody has quantized."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["input_dtype", "is_packed"]


def is_packed(linear: nn.Module) -> bool:
    """Whether the dtype of a module's weight, if it has one, says nothing of that of its input.

    torch's quantized modules have a method of that name, others a tensor of integers or of 8 bits.

    Args:
        linear: the module.

    >>> is_packed(nn.Linear(2, 3)), is_packed(nn.Linear(2, 3).to(torch.float8_e4m3fn))
    (False, True)
    """
    weight = getattr(linear, "weight", None)
    if not isinstance(weight, Tensor):
        return True
    return not weight.is_floating_point() or weight.dtype.itemsize == 1


def input_dtype(linear: nn.Module, owner: nn.Module, default: torch.dtype) -> torch.dtype:
    """The dtype that a linear module is to be given, where its input is computed and not handed in.

    Args:
        linear: the module.
        owner: the scheme it is a part of, whose own parameters say it where its weight is packed:
            what is within modules (biases, LoRA's matrices) others may keep in another dtype.
        default: where there are none, that of the queries.

    >>> packed = nn.Linear(2, 3).to(torch.float8_e4m3fn)
    >>> input_dtype(packed, nn.Sequential(packed), torch.bfloat16)
    torch.bfloat16
    """
    if not is_packed(linear):
        return linear.weight.dtype  # type: ignore[return-value]
    own = owner.parameters(recurse=False)
    return next((x.dtype for x in own if x.is_floating_point()), default)
