"""Numbers for how tensors lie in memory, by which what was compiled for them is found again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import count

from torch import Tensor

__all__ = ["number_of_layouts"]

_MOST = 4096  # that are remembered

_numbers: dict[Hashable, int] = {}
_next_number = count()  # one that was forgotten is nobody else's


def number_of_layouts(tensors: Iterable[Tensor | None]) -> int:
    """The same for tensors that are alike in all that a kernel may be compiled for.

    For NVIDIA's GPUs those are device, dtypes, sizes and strides, and where between two multiples
    of 16 bytes they begin.
    """
    layouts = tuple(
        None if x is None else (x.device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16)
        for x in tensors
    )
    number = _numbers.get(layouts)
    if number is None:
        if len(_numbers) >= _MOST:
            _numbers.clear()
        number = _numbers[layouts] = next(_next_number)
    return number
