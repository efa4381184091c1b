"""How tensors lie in memory, by which what was found for them is found again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import Generic, TypeVar

from torch import Tensor

__all__ = ["Kept", "layout_of", "layouts_of", "number_of", "number_of_layouts"]

_MOST = 4096  # that are kept

T = TypeVar("T")


class Kept(Generic[T]):
    """What was found, by keys; where it is too much, what was not of use lately is forgotten.

    Args:
        most: that is kept.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._found: dict[Hashable, T] = {}
        self._before: dict[Hashable, T] = {}  # when those were as many as may be
        self._most = most // 2

    def get(self, key: Hashable) -> T | None:
        """What was found for a key, or None."""
        found = self._found.get(key)
        if found is None:
            found = self._before.get(key)
            if found is not None:
                self.keep(key, found)
        return found

    def keep(self, key: Hashable, found: T) -> T:
        """The same, kept."""
        if len(self._found) >= self._most and key not in self._found:
            self._before, self._found = self._found, {}
        self._found[key] = found
        return found

    def forget(self) -> None:
        """Forget all that is kept."""
        self._found, self._before = {}, {}

    def find(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for a key, or else is made now."""
        found = self.get(key)
        return self.keep(key, make()) if found is None else found


_numbers: Kept[int] = Kept()
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
    return _numbers.find(key, lambda: next(_next_number))


def number_of_layouts(tensors: Iterable[Tensor | None]) -> int:
    """The number of some tensors' layouts."""
    return number_of(layouts_of(tensors))
