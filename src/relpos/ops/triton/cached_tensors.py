"""Small tensors of integers that many calls want alike: made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from .recorded import same_in_all_calls

__all__ = ["cached_tensors"]

_MOST = 256  # sets of arguments whose results are kept

P = ParamSpec("P")
T = TypeVar("T")


def cached_tensors(make: Callable[P, T]) -> Callable[P, T]:
    """`make` of arguments that can be hashed, the last one a device; nobody writes to its results.

    They are a tensor, or a dataclass of tensors. For a GPU they are kept in pinned memory, and
    copied on the current stream to where torch allocates at the time: what is on the GPU belongs to
    the call, in a CUDA graph and the run before it too.
    """

    @lru_cache(_MOST)
    def find(*given: Any) -> Any:
        return make(*given)  # type: ignore[call-arg]

    @lru_cache(_MOST)
    def find_pinned(*given: Any) -> Any:
        on_cpu = make(*given, torch.device("cpu"))  # type: ignore[call-arg]
        return _each(on_cpu, Tensor.pin_memory)

    @wraps(make)
    def found(*given: Any) -> Any:
        *others, device = given
        if device.type != "cuda":
            return same_in_all_calls(find(*given))
        if torch.cuda.is_current_stream_capturing():  # when no memory can be pinned
            return make(*given)  # type: ignore[call-arg]
        pinned = same_in_all_calls(find_pinned(*others))
        return _each(pinned, lambda x: x.to(device, non_blocking=True))

    return found  # type: ignore[return-value]


def _each(x: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """`function` of each tensor in `x`."""
    if is_dataclass(x) and not isinstance(x, type):
        return replace(
            x, **{part.name: _each(getattr(x, part.name), function) for part in fields(x)}
        )
    return function(x) if isinstance(x, Tensor) else x
