"""Shared memory that two warps use without anything between them that orders it.

For each two bytes it is known which warp has read and which has written them since the program's
last barrier, which of them an asynchronous copy is on its way to, which of them a product of a
warp group may still read, and which such a product may not read yet: what threads wrote, it sees
after `fence.proxy.async`, by who wrote it or, after a barrier, by any.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import HazardError

__all__ = ["Hazards", "room_of"]

_UNIT = 2  # bytes
_SEVERAL = -1  # warps


def room_of(size: int) -> int:
    """Bytes from one program's shared memory of `size` bytes to the next one's."""
    return -(-size // 16) * 16


class Hazards:
    """What is used of the shared memory of programs.

    Args:
        programs: that run at once.
        threads: of a program.
        size: bytes of a program's shared memory.
        fences: of `machine.Mode`.
    """

    def __init__(self, programs: int, threads: int, size: int, *, fences: str = "all") -> None:
        room = room_of(size)
        shape = (programs, room // _UNIT)
        self._copies_need_fences = fences == "all"
        self._readers = np.zeros(shape, np.int8)  # a warp's number from 1
        self._writers = np.zeros(shape, np.int8)
        self._landing = np.zeros(shape, np.int8)  # copies on their way
        self._in_use = np.zeros(shape, np.int16)  # products that may read it
        self._unfenced = np.zeros(shape, np.bool_)
        self._room = room
        self._warps = np.tile(np.arange(threads) // 32 + 1, programs).astype(np.int8)

    @staticmethod
    def units(rows: NDArray[Any], size: int) -> NDArray[Any]:
        """The units of each of these rows of `size` bytes."""
        if size <= _UNIT:
            return (rows * size // _UNIT)[:, None]
        count = size // _UNIT
        return rows[:, None] * count + np.arange(count)

    def read(self, rows: NDArray[Any], size: int, lanes: NDArray[np.intp] | slice) -> None:
        """Some lanes read a row each."""
        units, warps = self.units(rows, size), self._warps[lanes][:, None]
        writers = self._writers.reshape(-1)[units]
        wrong = (writers != 0) & (writers != warps)
        if wrong.any():
            raise self._hazard("reads what another warp wrote since the barrier", units, wrong)
        if (landing := self._landing.reshape(-1)[units] != 0).any():
            raise self._hazard("reads what a copy is on its way to", units, landing)
        self._mark_read(units, warps)

    def _mark_read(self, units: NDArray[Any], warps: NDArray[Any]) -> None:
        readers = self._readers.reshape(-1)
        warps = np.broadcast_to(warps, units.shape)
        before = readers[units]
        readers[units] = np.where((before == 0) | (before == warps), warps, _SEVERAL)
        # Of lanes of several warps that read the same at once, one has been marked.
        several = readers[units]
        several = (several != warps) & (several != _SEVERAL)
        readers[units[several]] = _SEVERAL

    def write(
        self,
        rows: NDArray[Any],
        size: int,
        lanes: NDArray[np.intp] | slice,
        changes: NDArray[np.bool_],
    ) -> None:
        """Some lanes write a row each; where it changes nothing, that is no hazard."""
        units, warps = self.units(rows, size), self._warps[lanes][:, None]
        changes = changes[:, None]
        writers, readers = (x.reshape(-1)[units] for x in (self._writers, self._readers))
        wrong = ((writers != 0) & (writers != warps)) & changes
        if wrong.any():
            raise self._hazard("writes what another warp wrote since the barrier", units, wrong)
        wrong = ((readers != 0) & (readers != warps)) & changes
        if wrong.any():
            raise self._hazard("writes what another warp read since the barrier", units, wrong)
        if (landing := self._landing.reshape(-1)[units] != 0).any():
            raise self._hazard("writes what a copy is on its way to", units, landing)
        self._check_not_in_use(units)
        changes = np.broadcast_to(changes, units.shape)
        changed = units[changes]
        self._writers.reshape(-1)[changed] = np.broadcast_to(warps, units.shape)[changes]
        self._unfenced.reshape(-1)[changed] = True

    def check_alone(
        self, rows: NDArray[Any], lanes: NDArray[np.intp] | slice, lost: NDArray[np.bool_]
    ) -> None:
        """Of what one instruction writes to a row, nothing is lost to another warp.

        Within a warp it may be: where several threads sum the same, Triton has all of them write
        it, and the compiler may have rounded differently in each.
        """
        if not lost.any():
            return
        warps = np.repeat(np.arange(len(self._warps) // 32), 32)[lanes]
        least, most = np.full(rows.max() + 1, len(self._warps)), np.full(rows.max() + 1, -1)
        np.minimum.at(least, rows, warps)
        np.maximum.at(most, rows, warps)
        if (least[rows[lost]] != most[rows[lost]]).any():
            raise HazardError("two warps write different values to one place of shared memory")

    def begin_copy(self, rows: NDArray[Any], size: int, lanes: NDArray[np.intp] | slice) -> None:
        """Copies of some lanes set out to a row each."""
        self.write(rows, size, lanes, np.ones(len(rows), np.bool_))
        self._landing.reshape(-1)[self.units(rows, size)] = 1

    def end_copy(self, rows: NDArray[Any], size: int, lanes: NDArray[np.intp] | slice) -> None:
        """They have arrived: as if their lanes wrote."""
        units = self.units(rows, size)
        self._landing.reshape(-1)[units] = 0
        self._writers.reshape(-1)[units] = self._warps[lanes][:, None]
        self._unfenced.reshape(-1)[units] = self._copies_need_fences

    def begin_product(self, units: NDArray[Any], warp: int) -> None:
        """A product sets out that reads these units, for the warp group that begins with a warp."""
        writers = self._writers.reshape(-1)[units]
        wrong = (writers != 0) & ((writers < warp + 1) | (writers > warp + 4))
        if wrong.any():
            raise self._hazard("a product reads what another warp wrote", units, wrong)
        if (landing := self._landing.reshape(-1)[units] != 0).any():
            raise self._hazard("a product reads what a copy is on its way to", units, landing)
        if (unfenced := self._unfenced.reshape(-1)[units]).any():
            raise self._hazard("a product reads what no fence has followed", units, unfenced)
        self._in_use.reshape(-1)[units] += 1

    def end_product(self, units: NDArray[Any]) -> None:
        """It is over, and has been waited for."""
        self._in_use.reshape(-1)[units] -= 1
        self._readers.reshape(-1)[units] = _SEVERAL

    def barrier(self, programs: NDArray[np.bool_]) -> None:
        """All threads of these programs have met."""
        which = slice(None) if programs.all() else programs
        self._readers[which] = 0
        self._writers[which] = 0

    def fence(self, lanes: NDArray[np.bool_] | None) -> None:
        """What some lanes see as written, products may read."""
        if lanes is None:
            self._unfenced[:] = False
            return
        programs = len(self._writers)
        warps = np.all(lanes.reshape(programs, -1, 32), 2)
        for program in np.flatnonzero(np.any(warps, 1)):
            here = np.concatenate([[True], warps[program]])  # None has written it since a barrier.
            self._unfenced[program] &= ~here[self._writers[program]]

    def _check_not_in_use(self, units: NDArray[Any]) -> None:
        in_use = self._in_use.reshape(-1)[units] != 0
        if in_use.any():
            raise self._hazard("writes what a product may still read", units, in_use)

    def _hazard(self, what: str, units: NDArray[Any], where: NDArray[np.bool_]) -> HazardError:
        unit = int(np.broadcast_to(units, where.shape)[where][0])
        return HazardError(f"{what}, at byte {unit * _UNIT % self._room} of shared memory")
