"""What runs beside the threads: copies to shared memory, and products of warp groups.

Each thread, and each warp group, closes what it has begun into groups, and waits until at most so
many groups of its own are left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import EmulationError, HazardError
from .memory import SharedMemory

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["WARP_GROUP", "Copies", "Product", "Products"]

WARP_GROUP = 128  # threads


@dataclass
class _Copy:
    """One of each of some lanes: where to, what, and the number of its group."""

    lanes: NDArray[np.intp]
    rows: NDArray[Any]
    values: NDArray[Any]
    groups: NDArray[np.int64]


class Copies:
    """`cp.async` of all lanes.

    Args:
        shared: where they go to.
        lanes: how many there are.
        late: whether they arrive only when they are waited for.
    """

    def __init__(self, shared: SharedMemory, lanes: int, *, late: bool) -> None:
        self._shared, self._late = shared, late
        self._closed = np.zeros(lanes, np.int64)
        self._pending: list[_Copy] = []

    def begin(self, addresses: NDArray[Any], lanes: NDArray[np.intp], values: NDArray[Any]) -> None:
        """A row of `values` is to go to the address of each of some lanes."""
        size = values.shape[1] * values.itemsize
        rows = self._shared.rows(addresses, lanes, size)
        if self._shared.hazards is not None:
            self._shared.hazards.begin_copy(rows, size, lanes)
        if not self._late:
            self._shared.view(size, values.itemsize)[rows] = values
        self._pending.append(_Copy(lanes, rows, values, self._closed[lanes]))

    def close(self, lanes: NDArray[np.bool_] | None) -> None:
        """What these lanes have begun is a group."""
        self._closed[slice(None) if lanes is None else lanes] += 1

    def wait(self, lanes: NDArray[np.bool_] | None, left: int) -> None:
        """Until at most so many groups of these lanes are on their way."""
        done = self._closed - left
        if lanes is not None:
            done[~lanes] = 0
        rest = []
        for copy in self._pending:
            here = copy.groups < done[copy.lanes]
            if here.all():
                self._arrive(copy)
            elif here.any():
                for which, into in ((here, None), (~here, rest)):
                    part = _Copy(
                        copy.lanes[which], copy.rows[which], copy.values[which], copy.groups[which]
                    )
                    self._arrive(part) if into is None else into.append(part)
            else:
                rest.append(copy)
        self._pending = rest

    def _arrive(self, copy: _Copy) -> None:
        size = copy.values.shape[1] * copy.values.itemsize
        if self._late:
            self._shared.view(size, copy.values.itemsize)[copy.rows] = copy.values
        if self._shared.hazards is not None:
            self._shared.hazards.end_copy(copy.rows, size, copy.lanes)

    def end(self) -> None:
        """The programs are over."""
        if self._pending and self._shared.hazards is not None:
            raise HazardError("a copy to shared memory was never waited for")


@dataclass
class Product:
    """A product of some warp groups that has begun.

    Args:
        warp_groups: their numbers.
        rows: the registers of its sum, by which other products of the same sum are found.
        multiply: given some of them by their places in `warp_groups`, and the registers of their
            sums `(register, warp group, thread)`, the sums with the product.
        units: of shared memory that each reads, for hazards.
        groups: number of each one's group.
        left: those that have not been waited for.
    """

    warp_groups: NDArray[np.intp]
    rows: tuple[str, ...]
    multiply: Callable[[NDArray[np.intp], NDArray[Any]], NDArray[Any]]
    units: list[list[NDArray[Any]]]
    groups: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    left: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))


@dataclass
class _Moved:
    """A copy of one register of a sum: which, where to, and of which warp groups."""

    number: int
    register: NDArray[Any]
    warp_groups: NDArray[np.bool_]


@dataclass
class _Sums:
    """The sums that products are adding to, in place of registers, which nobody may read.

    Args:
        values: of each register, `(warp group, thread)`.
        pending: products of each warp group.
        registers: the rows of them, in the same form.
        rivals: sums that have some of the same registers.
        copies: other registers that are to have the same.
    """

    values: NDArray[Any]
    pending: NDArray[np.int64]
    registers: list[NDArray[Any]]
    rivals: list[_Sums] = field(default_factory=list)
    copies: list[_Moved] = field(default_factory=list)


class Products:
    """`wgmma.mma_async` of all warp groups.

    The registers of a sum are NaN until it has been waited for. LLVM may copy one of them before,
    for the wait to be of the copy; then that has the sum as well.

    Args:
        machine: whose registers they are.
        late: whether they read shared memory only when they are waited for.
    """

    def __init__(self, machine: Machine, *, late: bool) -> None:
        self._machine, self._late = machine, late
        self._closed = np.zeros(max(machine.lanes // WARP_GROUP, 1), np.int64)
        self._pending: list[Product] = []
        self._sums: dict[tuple[str, ...], _Sums] = {}

    def begin(self, product: Product) -> None:
        """A product sets out."""
        sums = self._sums.get(product.rows)
        if sums is None:
            rows = [self._machine.rows[x] for x in product.rows]
            registers = [x.view(np.float32).reshape(-1, WARP_GROUP) for x in rows]
            shape = (len(registers), len(self._closed), WARP_GROUP)
            pending = np.zeros(len(self._closed), np.int64)
            sums = _Sums(np.empty(shape, np.float32), pending, registers)
            for names, other in self._sums.items():
                if not set(names).isdisjoint(product.rows):
                    sums.rivals.append(other)
                    other.rivals.append(sums)
            self._sums[product.rows] = sums
        if any(other.pending.any() for other in sums.rivals):
            raise EmulationError("two products that overlap in their registers")
        which = product.warp_groups
        new = which[sums.pending[which] == 0]
        for values, register in zip(sums.values, sums.registers, strict=True):
            values[new] = register[new]
            register[which] = np.nan
        sums.pending[which] += 1
        product.groups, product.left = self._closed[which], np.ones(len(which), np.bool_)
        hazards = self._machine.shared.hazards
        if hazards is not None:
            warps = self._machine.threads // 32
            for group, units in zip(which.tolist(), product.units, strict=True):
                for some in units:
                    hazards.begin_product(some, group * 4 % warps)
        if not self._late:
            self._multiply(product, product.left)
        self._pending.append(product)

    def moved(self, name: str, target: NDArray[Any], lanes: NDArray[np.bool_] | None) -> None:
        """A register has been copied to the row `target`."""
        for rows, sums in self._sums.items():
            if name not in rows or not sums.pending.any():
                continue
            here = sums.pending > 0
            if lanes is not None:
                here &= lanes.reshape(-1, WARP_GROUP).all(1)
            register = target.view(np.float32).reshape(-1, WARP_GROUP)
            sums.copies.append(_Moved(rows.index(name), register, here))

    def _multiply(self, product: Product, which: NDArray[np.bool_]) -> None:
        sums = self._sums[product.rows]
        groups = product.warp_groups[which]
        values = sums.values[:, groups]
        sums.values[:, groups] = product.multiply(np.flatnonzero(which), values)

    def close(self, warp_groups: NDArray[np.intp] | None) -> None:
        """What these warp groups have begun is a group."""
        self._closed[slice(None) if warp_groups is None else warp_groups] += 1

    def wait(self, warp_groups: NDArray[np.intp] | None, left: int) -> None:
        """Until at most so many groups of these warp groups are left."""
        done = self._closed - left
        if warp_groups is not None:
            others = np.ones(len(done), np.bool_)
            others[warp_groups] = False
            done[others] = 0
        rest, hazards = [], self._machine.shared.hazards
        for product in self._pending:
            here = product.left & (product.groups < done[product.warp_groups])
            product.left &= ~here
            if product.left.any():
                rest.append(product)
            if not here.any():
                continue
            if self._late:
                self._multiply(product, here)
            if hazards is not None:
                for number in np.flatnonzero(here):
                    for units in product.units[number]:
                        hazards.end_product(units)
            self._finish(product, here)
        self._pending = rest

    def _finish(self, product: Product, here: NDArray[np.bool_]) -> None:
        sums = self._sums[product.rows]
        groups = product.warp_groups[here]
        sums.pending[groups] -= 1
        done = groups[sums.pending[groups] == 0]
        if len(done):
            for values, register in zip(sums.values, sums.registers, strict=True):
                register[done] = values[done]
            for copy in sums.copies:
                which = done[copy.warp_groups[done]]
                copy.register[which] = sums.values[copy.number, which]
                copy.warp_groups[which] = False
            sums.copies = [x for x in sums.copies if x.warp_groups.any()]

    def end(self) -> None:
        """The programs are over."""
        if self._pending and self._machine.shared.hazards is not None:
            raise HazardError("a product was never waited for")
