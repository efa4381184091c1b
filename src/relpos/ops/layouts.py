"""How tensors lie in memory, by which what was found for them is found again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import count

from torch import Tensor

from .bounded_cache import BoundedCache

__all__ = ["layout_of", "layouts_of", "number_of", "number_of_layouts"]

_numbers: BoundedCache[int] = BoundedCache()
_next_number = count()  # one that was forgotten is nobody else's


def layouts_of(tensors: Iterable[Tensor | None]) -> Hashable:
    """Equal for tensors that are alike in all that a kernel may be compiled for.

    For NVIDIA's GPUs those are device, dtypes, sizes and strides, and where between two multiples
    of 16 bytes they begin.
    """
    return tuple([None if x is None else layout_of(x) for x in tensors])


def layout_of(x: Tensor) -> Hashable:
    """The layout of one tensor."""
    return x.device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16


def number_of(key: Hashable) -> int:
    """The same number for equal keys, which takes less time to compare."""
    return _numbers.get_or_make(key, lambda: next(_next_number))


def number_of_layouts(tensors: Iterable[Tensor | None]) -> int:
    """The number of some tensors' layouts."""
    return number_of(layouts_of(tensors))
