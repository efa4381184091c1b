"""Global memory that two programs use of which at least one writes: nothing orders programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import HazardError

__all__ = ["Races"]

_UNIT = 2  # bytes; of what is smaller nothing is known
_SEVERAL = -1  # programs


class Races:
    """Which program has read and which has written each two bytes of a tensor's storage.

    Args:
        size: of the storage, in bytes.
    """

    def __init__(self, size: int) -> None:
        self._readers = np.zeros(size // _UNIT + 1, np.int32)  # a program's number from 1
        self._writers = np.zeros(size // _UNIT + 1, np.int32)

    @staticmethod
    def _units(rows: NDArray[Any], size: int) -> NDArray[Any]:
        return rows[:, None] * (size // _UNIT) + np.arange(size // _UNIT)

    def read(self, rows: NDArray[Any], size: int, programs: NDArray[Any]) -> None:
        """Programs read a row of `size` bytes each."""
        units, readers = self._units(rows, size), np.int32(1) + programs.astype(np.int32)[:, None]
        if _others(self._writers[units], readers).any():
            raise HazardError("a program reads what another one writes")
        readers = np.broadcast_to(readers, units.shape)
        self._readers[units] = np.where(_others(self._readers[units], readers), _SEVERAL, readers)
        # Of several that read the same at once, one has been marked.
        self._readers[units[_others(self._readers[units], readers)]] = _SEVERAL

    def write(
        self, rows: NDArray[Any], size: int, programs: NDArray[Any], changes: NDArray[np.bool_]
    ) -> None:
        """Programs write a row each; where it changes nothing, that is no race."""
        units = self._units(rows[changes], size)
        writers = np.int32(1) + programs[changes].astype(np.int32)[:, None]
        if _others(self._readers[units], writers).any():
            raise HazardError("a program writes what another one reads")
        before = self._writers[units]
        self._writers[units] = writers
        if _others(before, writers).any() or _others(self._writers[units], writers).any():
            raise HazardError("two programs write to one place")


def _others(marked: NDArray[Any], own: NDArray[Any]) -> NDArray[np.bool_]:
    """Where others are marked than those of one's own."""
    return (marked != 0) & (marked != own)
