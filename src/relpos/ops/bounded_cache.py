"""A cache of bounded size, by keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

_MOST = 4096  # entries

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """What was found, by keys; where that is too much, what was not of use lately is dropped.

    Args:
        most: entries at a time.
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
                self.put(key, found)
        return found

    def put(self, key: Hashable, found: T) -> T:
        """Keeps what was found, and returns it."""
        if len(self._found) >= self._most and key not in self._found:
            self._before, self._found = self._found, {}
        self._found[key] = found
        return found

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for a key, or else is made now."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def clear(self) -> None:
        """Drops all entries."""
        self._found, self._before = {}, {}
