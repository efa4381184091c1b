"""Instructions that move numbers: to and from memory, and between the threads of a warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arithmetic import BUILDERS as ARITHMETIC
from .arithmetic import Builder, assign
from .errors import UnsupportedError
from .machine import LANES, Lanes, Machine, Run, dtype_of
from .memory import SHARED_BASE, unsigned
from .ptx import Address, Instruction, Operand, Register

__all__ = ["BUILDERS"]

_ALL = slice(None)


def addresses_of(machine: Machine, operand: Operand, kind: str) -> Callable[[], NDArray[Any]]:
    """What computes an address for every lane, as int64."""
    if not isinstance(operand, Address):
        raise UnsupportedError(f"address {operand!r}")
    offset = operand.offset
    if operand.base == "global_smem":
        fixed = np.full(machine.lanes, SHARED_BASE + offset, np.int64)
        return lambda: fixed
    row = machine.source(Register(operand.base), kind)
    if offset == 0:
        return lambda: row.astype(np.int64)
    by = row.dtype.type(offset % (1 << 8 * row.itemsize))
    return lambda: (row + by).astype(np.int64)


def _chosen(lanes: Lanes) -> NDArray[np.intp] | slice:
    return _ALL if lanes is None else np.flatnonzero(lanes)


def _many(operand: Operand) -> tuple[Operand, ...]:
    return operand if isinstance(operand, tuple) else (operand,)


def _load(machine: Machine, x: Instruction) -> Run:
    space, kind = x.parts[1].split("::")[0], x.parts[-1]
    if space == "param":
        return ARITHMETIC["param"](machine, x)
    targets = [machine.target(y, kind) for y in _many(x.operands[0])]
    dtype = dtype_of(kind)
    size = dtype.itemsize * len(targets)
    bits = unsigned(dtype.itemsize)
    if space not in ("global", "shared"):
        raise UnsupportedError(f"memory .{space}")
    addresses = addresses_of(machine, x.operands[1], "u64" if space == "global" else "u32")
    memory, shared, programs = machine.memory, machine.shared, machine.special["%ctaid.x"]

    def run(lanes: Lanes) -> None:
        which = _chosen(lanes)
        here = addresses()[which]
        if space == "global":
            values = memory.load(here, size, dtype.itemsize, programs[which])
        else:
            values = shared.load(here, which, size, dtype.itemsize)
        values = values.astype(bits, copy=False).view(dtype)
        for i, target in enumerate(targets):
            target[which] = values[:, i]

    return run


def _store(machine: Machine, x: Instruction) -> Run:
    space, kind = x.parts[1].split("::")[0], x.parts[-1]
    dtype = dtype_of(kind)
    bits = unsigned(dtype.itemsize)
    sources = [machine.source(y, kind) for y in _many(x.operands[1])]
    if space not in ("global", "shared"):
        raise UnsupportedError(f"memory .{space}")
    addresses = addresses_of(machine, x.operands[0], "u64" if space == "global" else "u32")
    programs = machine.special["%ctaid.x"]

    def run(lanes: Lanes) -> None:
        which = _chosen(lanes)
        here = addresses()[which]
        values = np.empty((len(here), len(sources)), dtype)
        for i, source in enumerate(sources):
            values[:, i] = source if np.ndim(source) == 0 else source[which]
        if space == "global":
            machine.memory.store(here, values.view(bits), programs[which])
        else:
            machine.shared.store(here, which, values.view(bits))

    return run


def _copy(machine: Machine, x: Instruction) -> Run:
    """`cp.async`: what is past the source's size, is zero."""
    if x.parts[2] == "commit_group":
        return machine.copies.close
    if x.parts[2] in ("wait_group", "wait_all"):
        left = x.operands[0] if x.operands else 0
        if not isinstance(left, int):
            raise UnsupportedError("cp.async")
        return lambda lanes: machine.copies.wait(lanes, left)
    if x.parts[2] not in ("ca", "cg"):
        raise UnsupportedError("cp.async")
    into = addresses_of(machine, x.operands[0], "u32")
    out_of = addresses_of(machine, x.operands[1], "u64")
    size = x.operands[2]
    if not isinstance(size, int) or len(x.operands) > 4:
        raise UnsupportedError("cp.async")
    programs = machine.special["%ctaid.x"]
    given = machine.source(x.operands[3], "u32") if len(x.operands) == 4 else np.uint32(size)

    def run(lanes: Lanes) -> None:
        which = np.arange(machine.lanes) if lanes is None else np.flatnonzero(lanes)
        read = np.broadcast_to(given, machine.lanes)[which]
        values = np.zeros((len(which), size // 4), np.uint32)
        if not np.isin(read, (0, size)).all():
            raise UnsupportedError("cp.async of a part of its size")
        some = read == size
        here = which[some]
        values[some] = machine.memory.load(out_of()[here], size, 4, programs[here])
        machine.copies.begin(into()[which], which, values)

    return run


def _shuffle(machine: Machine, x: Instruction) -> Run:
    """`shfl.sync`: a number of another lane, or its own where there is none."""
    how = x.parts[2]
    if x.operands[3] not in (31, 0) or len(x.operands) != 5:
        raise UnsupportedError("shfl.sync of a part of a warp")
    target, source = machine.target(x.operands[0], "b32"), machine.source(x.operands[1], "b32")
    by = machine.source(x.operands[2], "u32")
    lane = np.tile(np.arange(LANES, dtype=np.int64), machine.warps)
    first = np.arange(machine.lanes) // LANES * LANES

    def places() -> NDArray[Any]:
        amount = by.astype(np.int64) & 31
        if how == "idx":
            other = amount
        elif how == "bfly":
            other = lane ^ amount
        else:
            other = lane + amount if how == "down" else lane - amount
        other = np.broadcast_to(other, lane.shape)
        return first + np.where((other >= 0) & (other < LANES), other, lane)

    fixed = places() if np.ndim(by) == 0 else None

    def run(lanes: Lanes) -> None:
        machine.active_warps(lanes)
        assign(target, source[places() if fixed is None else fixed], lanes)

    return run


_REDUCTIONS = {
    "min": np.minimum, "max": np.maximum, "add": np.add, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _reduce(machine: Machine, x: Instruction) -> Run:
    """`redux.sync`: one number of all lanes of a warp."""
    kind = x.parts[-1]
    reduction = _REDUCTIONS.get(x.parts[2])
    if reduction is None or dtype_of(kind).kind == "f":
        raise UnsupportedError(f"redux.sync.{x.parts[2]} of {kind}")
    target, source = (of(y, kind) for of, y in zip(
        (machine.target, machine.source), x.operands[:2], strict=True
    ))  # fmt: skip
    members = machine.source(x.operands[2], "b32")

    def run(lanes: Lanes) -> None:
        machine.active_warps(lanes)
        if not (np.asarray(members).astype(np.int64) % (1 << 32) == (1 << 32) - 1).all():
            raise UnsupportedError("redux.sync of a part of a warp")
        rows = np.broadcast_to(source, machine.lanes).reshape(-1, LANES)
        assign(target, np.repeat(reduction.reduce(rows, 1, dtype=rows.dtype), LANES), lanes)

    return run


def _matrices(machine: Machine, x: Instruction, loads: bool) -> tuple[Any, ...]:
    if x.parts[3] != "m8n8" or x.parts[-1] != "b16" or x.parts[-2].split("::")[0] != "shared":
        raise UnsupportedError("a matrix of another type")
    count = int(x.parts[4][1:])
    registers, address = x.operands if loads else x.operands[::-1]
    rows = [machine.row(y).reshape(-1, LANES) for y in _many(registers)]
    if len(rows) != count:
        raise UnsupportedError("registers of a matrix")
    return count, rows, addresses_of(machine, address, "u32"), "trans" in x.parts


def _load_matrices(machine: Machine, x: Instruction) -> Run:
    """`ldmatrix`: 8x8 matrices of 16 bits, of which each lane gives the address of a row."""
    count, registers, addresses, transposed = _matrices(machine, x, True)

    def run(lanes: Lanes) -> None:
        warps, which = _rows_of(machine, lanes, count)
        values = machine.shared.load(addresses()[which], which, 16, 2)
        values = values.reshape(-1, count, 8, 8)
        if transposed:
            values = values.swapaxes(2, 3)
        pairs = np.ascontiguousarray(values).view(np.uint32).reshape(-1, count, LANES)
        for i, register in enumerate(registers):
            register[warps] = pairs[:, i]

    return run


def _store_matrices(machine: Machine, x: Instruction) -> Run:
    """`stmatrix`: the reverse."""
    count, registers, addresses, transposed = _matrices(machine, x, False)

    def run(lanes: Lanes) -> None:
        warps, which = _rows_of(machine, lanes, count)
        pairs = np.stack([register[warps] for register in registers], 1)
        values = pairs.view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            values = np.ascontiguousarray(values.swapaxes(2, 3))
        machine.shared.store(addresses()[which], which, values.reshape(-1, 8))

    return run


def _rows_of(machine: Machine, lanes: Lanes, count: int) -> tuple[Any, NDArray[np.intp]]:
    """The warps that run, and the lanes that give the rows of their matrices."""
    warps = machine.active_warps(lanes)
    numbers = np.arange(machine.warps) if warps is None else warps
    which = (numbers[:, None] * LANES + np.arange(8 * count)).reshape(-1)
    return (_ALL if warps is None else warps), which


def _fence(machine: Machine, x: Instruction) -> Run:
    """What products of warp groups see from then on; the machine's own view of memory is one."""
    hazards = machine.shared.hazards
    if x.parts[:3] != ("fence", "proxy", "async") or hazards is None:
        return _nothing(machine, x)
    return hazards.fence


def _nothing(machine: Machine, x: Instruction) -> Run:
    """What orders memory, of which the machine has but one view, or says how to cache it."""
    return lambda lanes: None


BUILDERS: dict[str, Builder] = {
    "ld": _load, "st": _store, "cp": _copy, "shfl": _shuffle, "redux": _reduce,
    "ldmatrix": _load_matrices, "stmatrix": _store_matrices, "fence": _fence,
    "membar": _nothing, "createpolicy": _nothing, "bar": _nothing,
}  # fmt: skip
