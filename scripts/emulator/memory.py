"""Global and shared memory, with their bounds.

The tensors of a launch are far apart, at addresses of the emulator's own, so that what is past the
end of one is never inside another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import AccessError
from .hazards import Hazards, room_of
from .races import Races

__all__ = ["SHARED_BASE", "GlobalMemory", "SharedMemory", "unsigned"]

SHARED_BASE = 1024  # what is before it, is the system's
_APART = 1 << 40


def unsigned(size: int) -> Any:
    """The type of NumPy for numbers of so many bytes."""
    return np.dtype(f"u{size}")


@dataclass
class _Region:
    """A tensor's storage.

    Args:
        base: its address here.
        begin: of what may be accessed, in bytes from there.
        end: of it.
        data: all of it.
        races: what programs do to it, or None.
    """

    base: int
    begin: int
    end: int
    data: NDArray[np.uint8]
    races: Races | None


class GlobalMemory:
    """The tensors of a launch.

    Args:
        hazards: whether to look for programs that disturb one another.
    """

    def __init__(self, *, hazards: bool = False) -> None:
        self._hazards = hazards
        self._regions: dict[int, _Region] = {}
        self._of_base: dict[int, _Region] = {}

    def address(self, tensor: torch.Tensor, *, with_storage: bool = False) -> int:
        """Where a tensor begins; from now on it may be accessed, or all of its storage."""
        storage = tensor.untyped_storage()
        pointer, size = storage.data_ptr(), tensor.element_size()
        region = self._regions.get(pointer)
        begin = int(tensor.storage_offset()) * size
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        end = begin + (sum(int(n - 1) * int(step) for n, step in steps) + 1) * size
        if tensor.numel() == 0:
            end = begin
        if region is None:
            data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            if pointer % 16:
                raise ValueError("GlobalMemory: a tensor's storage must begin at 16 bytes")
            # Aligned as the tensor is.
            base = (len(self._regions) + 1) * _APART + pointer % 256
            races = Races(len(data)) if self._hazards else None
            region = _Region(base, begin, end, data, races)
            self._regions[pointer] = self._of_base[base // _APART] = region
        region.begin, region.end = min(region.begin, begin), max(region.end, end)
        if with_storage:
            region.begin, region.end = 0, storage.nbytes()
        return region.base + begin

    def load(
        self, addresses: NDArray[np.int64], size: int, unit: int, programs: NDArray[Any]
    ) -> NDArray[Any]:
        """`size` bytes at each address, as units of `unit` bytes, for a program each."""
        result = np.empty((len(addresses), size // unit), unsigned(unit))
        for data, which, rows, races in self._find(addresses, size, unit):
            result[which] = data[rows]
            if races is not None:
                races.read(rows, size, programs[which])
        return result

    def store(
        self, addresses: NDArray[np.int64], values: NDArray[Any], programs: NDArray[Any]
    ) -> None:
        """One row of `values` to each address; of equal addresses the last wins."""
        unit = values.itemsize
        size = values.shape[1] * unit
        for data, which, rows, races in self._find(addresses, size, unit):
            if races is not None:
                changes = (data[rows] != values[which]).any(1)
                races.write(rows, size, programs[which], changes)
            data[rows] = values[which]

    def _find(self, addresses: NDArray[np.int64], size: int, unit: int) -> list[Any]:
        """For each region: its rows of `size` bytes, which addresses are in it, and which rows.

        And its races.
        """
        if not len(addresses):
            return []
        numbers = addresses // _APART
        found = []
        for number in [numbers[0]] if (numbers == numbers[0]).all() else np.unique(numbers):
            which = numbers == number
            here = addresses[which]
            region = self._of_base.get(int(number))
            low, high = int(here.min()), int(here.max())
            if region is None:
                raise AccessError(f"global address {low:#x} is in no tensor")
            if low < region.base + region.begin or high + size > region.base + region.end:
                wrong = low if low < region.base + region.begin else high
                raise AccessError(
                    f"global access of {size} bytes at {wrong - region.base} of a tensor's storage"
                    f" is outside of its bytes {region.begin}..{region.end}"
                )
            if (here % size).any():
                raise AccessError(f"global access of {size} bytes is not aligned")
            rows = region.data[: len(region.data) // size * size].view(unsigned(unit))
            rows = rows.reshape(-1, size // unit)
            found.append((rows, which, (here - region.base) // size, region.races))
        return found


class SharedMemory:
    """The shared memory of programs that run at once; what was never written, reads as NaN.

    Args:
        programs: that run at once.
        threads: of a program.
        size: in bytes.
        hazards: of the same programs; None: not looked for.
    """

    def __init__(
        self, programs: int, threads: int, size: int, hazards: Hazards | None = None
    ) -> None:
        self.size = size
        self.room = room_of(size)
        self.data = np.full(programs * self.room, 0xFF, np.uint8)
        self._views: dict[tuple[int, int], NDArray[Any]] = {}
        program = np.repeat(np.arange(programs, dtype=np.int64), threads)
        self._bases = program * self.room - SHARED_BASE
        self.hazards = hazards

    def view(self, size: int, unit: int) -> NDArray[Any]:
        """All of it as rows of `size` bytes, in units of `unit` bytes."""
        found = self._views.get((size, unit))
        if found is None:
            found = self.data.view(unsigned(unit)).reshape(-1, size // unit)
            self._views[size, unit] = found
        return found

    def rows(
        self, addresses: NDArray[Any], lanes: NDArray[np.intp] | slice, size: int
    ) -> NDArray[np.int64]:
        """The numbers of the rows of `size` bytes at the addresses of some lanes."""
        here = addresses.astype(np.int64)
        if not len(here):
            return here
        low, high = int(here.min()), int(here.max())
        if low < SHARED_BASE or high + size > SHARED_BASE + self.size:
            wrong = low if low < SHARED_BASE else high
            raise AccessError(
                f"shared access of {size} bytes at {wrong - SHARED_BASE} is outside of"
                f" the program's {self.size}"
            )
        if (here % size).any():
            raise AccessError(f"shared access of {size} bytes is not aligned")
        return (here + self._bases[lanes]) // size

    def load(
        self, addresses: NDArray[Any], lanes: NDArray[np.intp] | slice, size: int, unit: int
    ) -> NDArray[Any]:
        """`size` bytes at the address of each of some lanes."""
        rows = self.rows(addresses, lanes, size)
        if self.hazards is not None:
            self.hazards.read(rows, size, lanes)
        return self.view(size, unit)[rows]

    def store(
        self, addresses: NDArray[Any], lanes: NDArray[np.intp] | slice, values: NDArray[Any]
    ) -> None:
        """One row of `values` to the address of each of some lanes."""
        unit = values.itemsize
        size = values.shape[1] * unit
        rows = self.rows(addresses, lanes, size)
        view = self.view(size, unit)
        if self.hazards is not None:
            self.hazards.write(rows, size, lanes, (view[rows] != values).any(1))
        view[rows] = values
        if self.hazards is not None:
            self.hazards.check_alone(rows, lanes, (view[rows] != values).any(1))

    def barrier(self, programs: NDArray[np.bool_]) -> None:
        """All threads of these programs have met."""
        if self.hazards is not None:
            self.hazards.barrier(programs)
