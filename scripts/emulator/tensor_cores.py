"""Products of matrices: `mma.sync` of a warp, and `wgmma.mma_async` of four warps.

How a tile lies in the registers of a warp: thread `4 g + t` has of row `g` the columns `2 t` and
`2 t + 1`, and then those of row `g + 8`; eight columns further right are the next registers. How a
tile lies in shared memory for a warp group, its descriptor says (PTX ISA, "Asynchronous warpgroup
level matrix shared memory layout"): blocks of 8 rows, each row 16, 32, 64 or 128 bytes of which the
places of 16 bytes are swizzled by the row's number, and how far apart the blocks are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arithmetic import Builder, bfloat16_numbers
from .asynchronous import WARP_GROUP, Product
from .errors import AccessError, EmulationError, UnsupportedError
from .machine import LANES, Lanes, Machine, Run
from .memory import SHARED_BASE
from .ptx import Instruction, Register

__all__ = ["BUILDERS"]

_SIZES = {"bf16": 2, "f16": 2, "tf32": 4}
_WIDTHS = (16, 128, 64, 32)  # bytes of a row of a block, by the descriptor's kind of layout
_PRODUCT = re.compile(r"m(\d+)n(\d+)k(\d+)")


def numbers_of(bits: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """What the bits of a tile are, as a tensor core reads them."""
    if kind == "bf16":
        return bfloat16_numbers(bits)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def left_tile(registers: NDArray[np.uint32], kind: str) -> NDArray[np.float32]:
    """A left factor `(warps, 16, k)` from registers `(4, warps, 32)`."""
    of_rows = registers.view(np.uint16 if _SIZES[kind] == 2 else np.uint32)
    parts = of_rows.reshape(2, 2, registers.shape[1], 8, 4, -1)  # k, rows, warp, g, t, pair
    tile = parts.transpose(2, 1, 3, 0, 4, 5).reshape(registers.shape[1], 16, -1)
    return numbers_of(np.ascontiguousarray(tile), kind)


def right_tile(registers: NDArray[np.uint32], kind: str) -> NDArray[np.float32]:
    """A right factor `(warps, k, 8)` from registers `(2, warps, 32)`."""
    of_rows = registers.view(np.uint16 if _SIZES[kind] == 2 else np.uint32)
    parts = of_rows.reshape(2, registers.shape[1], 8, 4, -1)  # k, warp, g, t, pair
    tile = parts.transpose(1, 0, 3, 4, 2).reshape(registers.shape[1], -1, 8)
    return numbers_of(np.ascontiguousarray(tile), kind)


def sum_tile(registers: NDArray[np.float32]) -> NDArray[np.float32]:
    """A sum `(warps, 16, n)` from registers `(n / 2, warps, 32)`."""
    count, warps = registers.shape[:2]
    parts = registers.reshape(count // 4, 2, 2, warps, 8, 4)  # n, rows, pair, warp, g, t
    return parts.transpose(3, 1, 4, 0, 5, 2).reshape(warps, 16, 2 * count)


def sum_registers(tile: NDArray[np.float32]) -> NDArray[np.float32]:
    """The reverse of `sum_tile`."""
    warps, _, columns = tile.shape
    parts = tile.reshape(warps, 2, 8, columns // 8, 4, 2)
    return parts.transpose(3, 1, 5, 0, 2, 4).reshape(columns // 2, warps, LANES)


def _shape(x: Instruction, at: int) -> tuple[int, int, int]:
    found = _PRODUCT.fullmatch(x.parts[at])
    if found is None:
        raise UnsupportedError("a product of another shape")
    m, n, k = (int(y) for y in found.groups())
    return m, n, k


def _warp_product(machine: Machine, x: Instruction) -> Run:
    """`mma.sync`."""
    m, n, k = _shape(x, 3)
    out, a_kind, b_kind, c_kind = x.parts[-4:]
    if (m, n) != (16, 8) or x.parts[4:6] != ("row", "col") or (out, c_kind) != ("f32", "f32"):
        raise UnsupportedError("a product of another kind")
    if a_kind != b_kind or a_kind not in _SIZES or k * _SIZES[a_kind] != 32:
        raise UnsupportedError("factors of another type")
    d, a, b, c = (_registers(machine, y) for y in x.operands)

    def run(lanes: Lanes) -> None:
        warps = machine.active_warps(lanes)
        which = slice(None) if warps is None else warps
        left = left_tile(np.stack([y[which] for y in a]), a_kind)
        right = right_tile(np.stack([y[which] for y in b]), a_kind)
        sums = sum_tile(np.stack([y[which] for y in c]).view(np.float32))
        result = sum_registers(np.matmul(left, right) + sums).view(np.uint32)
        for register, values in zip(d, result, strict=True):
            register[which] = values

    return run


def _registers(machine: Machine, operand: Any) -> list[NDArray[np.uint32]]:
    if not isinstance(operand, tuple):
        raise UnsupportedError("a product's operand")
    sources = [machine.source(y, "b32") for y in operand]
    return [
        (y if np.ndim(y) else np.full(machine.lanes, y)).reshape(-1, LANES) for y in sources
    ]  # fmt: skip


@dataclass(frozen=True)
class _Place:
    """A tile in shared memory.

    Args:
        rows: of it; of the right factor its columns.
        k: along which the product sums.
        size: bytes of a number.
        transposed: whether its numbers lie one after another along its rows, not along `k`.
    """

    rows: int
    k: int
    size: int
    transposed: bool


@lru_cache(maxsize=4096)
def offsets(descriptor: int, place: _Place) -> NDArray[np.int64]:
    """Where each number `(rows, k)` lies in shared memory, in bytes from its beginning."""
    start, leading, stride = ((descriptor >> x & 0x3FFF) << 4 for x in (0, 16, 32))
    width = _WIDTHS[descriptor >> 62 & 3]
    if descriptor >> 49 & 7:
        raise UnsupportedError("a descriptor with a base offset")
    r, k = np.arange(place.rows)[:, None], np.arange(place.k)[None, :]
    # What lies one after another, and what lies in one row of a block after another.
    along, across = (r, k) if place.transposed else (k, r)
    at = along * place.size
    outer = at // width if width > 16 else at // 16
    inner = at % width
    if width > 16 or not place.transposed:
        # Blocks one beside another, and one below another.
        apart_along, apart_across = leading, stride
    else:
        apart_along, apart_across = stride, leading
    address = start + inner + outer * apart_along + across % 8 * width + across // 8 * apart_across
    swizzled = address ^ (address >> 7 & (width // 16 - 1)) << 4
    return swizzled - SHARED_BASE


def _group_product(machine: Machine, x: Instruction) -> Run:
    """`wgmma`: its fence, the product, and what closes a group and waits."""
    if x.parts[1] == "fence":
        return lambda lanes: None
    if x.parts[1] == "commit_group":
        return lambda lanes: machine.products.close(machine.active_warps(lanes, WARP_GROUP))
    if x.parts[1] == "wait_group":
        left = x.operands[0]
        if not isinstance(left, int):
            raise UnsupportedError("wgmma")
        return lambda lanes: machine.products.wait(machine.active_warps(lanes, WARP_GROUP), left)
    return _begin_product(machine, x)


def _begin_product(machine: Machine, x: Instruction) -> Run:
    m, n, k = _shape(x, 4)
    out, kind, b_kind = x.parts[-3:]
    if x.parts[1] != "mma_async" or m != 64 or out != "f32" or kind != b_kind:
        raise UnsupportedError("a product of another kind")
    if kind not in _SIZES or k * _SIZES[kind] != 32:
        raise UnsupportedError("factors of another type")
    d, a, b, scale, *flags = x.operands
    in_registers = isinstance(a, tuple)
    numbers = [y for y in flags if isinstance(y, int)]
    if numbers[:2] != [1, 1] or not isinstance(d, tuple):
        raise UnsupportedError("a product with another sign")
    transposes = numbers[2:] or [0, 0][in_registers:]
    if len(transposes) != 2 - in_registers:
        raise UnsupportedError("a product's operands")
    size = _SIZES[kind]
    right_place = _Place(n, k, size, bool(transposes[-1]))
    left_place = _Place(64, k, size, bool(transposes[0]))
    names = tuple(y.name for y in d if isinstance(y, Register))
    left_registers = _registers(machine, a) if in_registers else []
    left_descriptors = None if in_registers else _descriptors(machine, a)
    right_descriptors = _descriptors(machine, b)
    added = machine.source(scale, "pred")

    def run(lanes: Lanes) -> None:
        found = machine.active_warps(lanes, WARP_GROUP)
        groups = np.arange(machine.lanes // WARP_GROUP) if found is None else found
        right = _Operand(machine, groups, right_descriptors(groups), right_place, kind)
        operands = [right]
        if left_descriptors is None:
            warps = (groups[:, None] * 4 + np.arange(4)).reshape(-1)
            tile = left_tile(np.stack([y[warps] for y in left_registers]), kind)
            fixed = tile.reshape(len(groups), 64, k)
            read_left: Callable[[NDArray[np.intp]], NDArray[np.float32]] = fixed.__getitem__
        else:
            left = _Operand(machine, groups, left_descriptors(groups), left_place, kind)
            operands.append(left)
            read_left = left.read
        adds = np.broadcast_to(added, machine.lanes).reshape(-1, WARP_GROUP)[groups, 0]

        def multiply(which: NDArray[np.intp], sums: NDArray[Any]) -> NDArray[Any]:
            product = np.matmul(read_left(which), right.read(which).swapaxes(1, 2))
            tile = sum_tile(sums.reshape(len(sums), -1, LANES)).reshape(-1, 64, n)
            tile = np.where(adds[which][:, None, None], tile + product, product)
            return sum_registers(tile.reshape(-1, 16, n)).reshape(sums.shape)

        units = [[y.units(i) for y in operands] for i in range(len(groups))]
        machine.products.begin(Product(groups, names, multiply, units))

    return run


def _descriptors(machine: Machine, operand: Any) -> Callable[[NDArray[np.intp]], list[int]]:
    """A descriptor of some warp groups; all threads of one have the same."""
    row = machine.source(operand, "b64").reshape(-1, WARP_GROUP)

    def read(groups: NDArray[np.intp]) -> list[int]:
        some = row[groups]
        if (some != some[:, :1]).any():
            raise EmulationError("threads of a warp group have different descriptors")
        return some[:, 0].tolist()

    return read


class _Operand:
    """A factor of a product, in the shared memory of some warp groups."""

    def __init__(
        self,
        machine: Machine,
        groups: NDArray[np.intp],
        descriptors: list[int],
        place: _Place,
        kind: str,
    ) -> None:
        self._machine, self._groups, self._kind = machine, groups, kind
        self._descriptors, self._place = descriptors, place
        self._bases = groups * WARP_GROUP // machine.threads * machine.shared.room
        for descriptor in set(descriptors):
            at = offsets(descriptor, place)
            low, high = int(at.min()), int(at.max()) + place.size
            if low < 0 or high > machine.shared.size:
                raise AccessError(
                    f"a product reads bytes {low}..{high} of {machine.shared.size} of shared memory"
                )

    def read(self, which: NDArray[np.intp]) -> NDArray[np.float32]:
        """The numbers `(warp group, rows, k)` of some of them."""
        size, place = self._place.size, self._place
        view = self._machine.shared.view(size, size)[:, 0]
        mine = [self._descriptors[i] for i in which.tolist()]
        bits = np.empty((len(which), place.rows, place.k), view.dtype)
        for descriptor in set(mine):
            here = np.array([x == descriptor for x in mine])
            at = offsets(descriptor, place) // size
            bits[here] = view[self._bases[which[here]][:, None, None] // size + at]
        return numbers_of(bits, self._kind)

    def units(self, number: int) -> NDArray[np.int64]:
        """What one of them reads, in pairs of bytes."""
        at = offsets(self._descriptors[number], self._place)
        return (self._bases[number] + at).reshape(-1) // 2


BUILDERS: dict[str, Builder] = {"mma": _warp_product, "wgmma": _group_product}
