"""Linear modules of a scheme that somebody has quantized."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

__all__ = ["device_of", "input_dtype", "is_packed"]


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
        owner: the scheme it is a part of. Where its weight is packed, the scheme's own parameters
            say it; not those of modules within, of which biases and LoRA's matrices may have
            another dtype.
        default: where there are none, that of the queries.

    >>> packed = nn.Linear(2, 3).to(torch.float8_e4m3fn)
    >>> input_dtype(packed, nn.Sequential(packed), torch.bfloat16)
    torch.bfloat16
    """
    if not is_packed(linear):
        return linear.weight.dtype  # type: ignore[return-value]
    return next((x.dtype for x in _own_parameters(owner) if x.is_floating_point()), default)


def device_of(scheme: nn.Module) -> torch.device:
    """Where a scheme's parameters are, or its buffers if quantization has left no parameter.

    Args:
        scheme: with modules of its own, maybe.
    """
    parts = list(scheme.modules())
    parameters = (x for part in parts for x in _own_parameters(part))
    buffers = (x for part in parts for x in part.buffers(recurse=False))
    return next((x.device for x in (*parameters, *buffers)), torch.device("cpu"))


def _own_parameters(module: nn.Module) -> Iterator[Tensor]:
    """The module's own parameters, which a `torch.nn.DataParallel` replica keeps elsewhere."""
    own = (module._parameters, getattr(module, "_former_parameters", {}))
    return (x for found in own for x in found.values() if x is not None)
