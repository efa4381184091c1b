"""Programs of a kernel that run at once: registers of all threads, control flow and barriers.

A thread of a program is a lane; all lanes that are at the same instruction run together, so that an
instruction is a few calls of NumPy. Lanes that are behind run first, which brings those together
that a branch has parted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .asynchronous import Copies, Products
from .errors import EmulationError, UnsupportedError
from .hazards import Hazards
from .memory import SHARED_BASE, GlobalMemory, SharedMemory
from .ptx import Instruction, Kernel, Operand, Register

__all__ = ["DTYPES", "LANES", "Lanes", "Machine", "Mode", "Run", "dtype_of"]

LANES = 32  # of a warp
Lanes = NDArray[np.bool_] | None  # those that run; None: all
Run = Callable[[Lanes], None]

#: How a type of PTX lies in registers; bfloat16 as its bits.
DTYPES: dict[str, Any] = {
    "pred": np.bool_, "bf16": np.uint16, "f16": np.float16, "f32": np.float32, "f64": np.float64,
    **{f"{kind}{bits}": np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}").type
       for kind in "bus" for bits in (8, 16, 32, 64)},
}  # fmt: skip


def dtype_of(kind: str) -> np.dtype[Any]:
    """How a type of PTX lies in registers."""
    if kind not in DTYPES:
        raise UnsupportedError(f"type .{kind}")
    return np.dtype(DTYPES[kind])


@dataclass(frozen=True)
class Mode:
    """When what is asynchronous happens, and what is looked for.

    A kernel that is right gives the same whenever it happens.

    Args:
        copies: to shared memory are there "early", at once, or "late", when they are waited for.
        products: of warp groups read shared memory "early" or "late".
        hazards: whether to look for them in shared memory, and between programs.
        fences: after what the products of a warp group need one: "stores" of threads alone, or
            "all", copies too. PTX wants all; Triton 3.6 makes none for copies, and is right on an
            H100 as far as that was seen.
    """

    copies: str = "late"
    products: str = "late"
    hazards: bool = True
    fences: str = "all"

    def __post_init__(self) -> None:
        for name in ("copies", "products"):
            if getattr(self, name) not in ("early", "late"):
                raise ValueError(f"Mode: {name} must be early or late, got {getattr(self, name)}")
        if self.fences not in ("stores", "all"):
            raise ValueError(f"Mode: fences must be stores or all, got {self.fences}")


class Machine:
    """Programs of a kernel.

    Args:
        kernel: its instructions.
        first: number of the first program.
        programs: how many run at once, of `total`.
        total: programs of the launch.
        threads: of a program.
        shared_bytes: of a program.
        memory: that all programs see.
        parameters: the bits of each.
        mode: when what is asynchronous happens.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        first: int,
        programs: int,
        total: int,
        threads: int,
        shared_bytes: int,
        memory: GlobalMemory,
        parameters: dict[str, int],
        mode: Mode,
    ) -> None:
        self.kernel, self.mode, self.memory = kernel, mode, memory
        self.programs, self.threads, self.lanes = programs, threads, programs * threads
        self.warps = self.lanes // LANES
        self.parameters = parameters
        hazards = None
        if mode.hazards and shared_bytes:
            hazards = Hazards(programs, threads, shared_bytes, fences=mode.fences)
        self.shared = SharedMemory(programs, threads, shared_bytes, hazards)
        self.copies = Copies(self.shared, self.lanes, late=mode.copies == "late")
        self.products = Products(self, late=mode.products == "late")
        self.rows = self._rows()
        # What products of warp groups write to.
        self.sum_registers = {
            y.name
            for x in kernel.instructions
            if x.parts[:2] == ("wgmma", "mma_async") and isinstance(x.operands[0], tuple)
            for y in x.operands[0]
            if isinstance(y, Register)
        }
        thread = np.tile(np.arange(threads, dtype=np.uint32), programs)
        program = np.repeat(np.arange(first, first + programs, dtype=np.uint32), threads)
        ones = np.ones(self.lanes, np.uint32)
        self.special = {
            "%tid.x": thread, "%ctaid.x": program, "%laneid": thread % np.uint32(LANES),
            "%warpid": thread // np.uint32(LANES), "%nctaid.x": ones * np.uint32(total),
            "%ntid.x": ones * np.uint32(threads), **{
                f"%{name}.{axis}": ones * np.uint32(name[0] == "n")
                for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "yz"
            },
        }  # fmt: skip
        self.ran: set[int] = set()  # numbers of instructions
        self._now: Instruction | None = None

    def _rows(self) -> dict[str, NDArray[Any]]:
        """A row of all lanes for each register; of the same type they lie together."""
        of_size: dict[Any, list[str]] = {}
        for name, kind in self.kernel.registers.items():
            dtype = dtype_of(kind)
            bits = np.bool_ if kind == "pred" else np.dtype(f"u{dtype.itemsize}")
            of_size.setdefault(bits, []).append(name)
        rows: dict[str, NDArray[Any]] = {}
        for bits, names in of_size.items():
            rows |= zip(names, np.zeros((len(names), self.lanes), bits), strict=True)
        return rows

    # What instructions are built from.

    def source(self, operand: Operand, kind: str) -> Any:
        """What an operand is: a view of a register's row, or a number."""
        dtype = dtype_of(kind)
        if isinstance(operand, Register):
            row = self.special[operand.name] if operand.name in self.special else (
                self.row(operand)
            )  # fmt: skip
            if row.itemsize < dtype.itemsize:
                raise UnsupportedError(f"{operand.name} is too narrow for .{kind}")
            view = row.view(dtype)
            return view[:: row.itemsize // dtype.itemsize]
        if isinstance(operand, int):
            if kind == "pred":
                return np.bool_(operand)
            bits = operand % (1 << 8 * dtype.itemsize)
            return np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]
        if operand == "global_smem":
            return dtype.type(SHARED_BASE)
        raise UnsupportedError(f"operand {operand!r}")

    def target(self, operand: Operand, kind: str) -> NDArray[Any]:
        """The row of a register that is written; what is narrower, is extended by its sign."""
        if operand is None:
            return np.empty(self.lanes, dtype_of(kind))
        row = self.row(operand)
        dtype = dtype_of(kind)
        if row.itemsize == dtype.itemsize:
            return row.view(dtype)
        if row.itemsize < dtype.itemsize:
            raise UnsupportedError(f"{operand} is too narrow for .{kind}")
        return row.view(f"{'i' if dtype.kind == 'i' else 'u'}{row.itemsize}")

    def row(self, operand: Operand) -> NDArray[Any]:
        """The row of a register."""
        if not isinstance(operand, Register) or operand.name not in self.rows:
            raise UnsupportedError(f"operand {operand!r}")
        return self.rows[operand.name]

    def active_warps(self, lanes: Lanes, size: int = LANES) -> NDArray[np.intp] | None:
        """The warps that run, or groups of `size` lanes; None: all. Each runs as a whole."""
        if lanes is None:
            return None
        groups = lanes.reshape(-1, size)
        some = groups.any(1)
        if not np.array_equal(some, groups.all(1)):
            raise EmulationError("an instruction for whole warps is reached by parts of them")
        return np.flatnonzero(some)

    # Running.

    def run(self, build: Callable[[Machine, Instruction], Run]) -> None:
        """All programs to their ends.

        Raises:
            EmulationError: with the kernel's name and the instruction.
        """
        try:
            with np.errstate(all="ignore"):
                blocks = self._blocks(build)
                self._run(blocks)
            self.copies.end()
            self.products.end()
        except EmulationError as error:
            where = f" at `{self._now.text[:200]}`" if self._now else ""
            raise type(error)(f"{self.kernel.name}: {error}{where}") from None

    def _blocks(
        self, build: Callable[[Machine, Instruction], Run]
    ) -> dict[int, tuple[list[tuple[Instruction, Run]], int]]:
        """Runs of instructions without a branch into or out of them, by their first one.

        Each with the number of the branch, barrier or return that ends it, or of the next.
        """
        code = self.kernel.instructions
        targets = {str(x.operands[0]) for x in code if x.parts[0] == "bra"}
        begins = {self.kernel.labels[x] for x in targets} | {0}
        blocks: dict[int, tuple[list[tuple[Instruction, Run]], int]] = {}
        now: list[tuple[Instruction, Run]] = []
        begin = 0
        for i, instruction in enumerate(code):
            if i in begins and i > begin:
                blocks[begin] = now, i
                begin, now = i, []
            if instruction.parts[0] in ("bra", "ret", "exit") or instruction.parts[:2] == (
                "bar", "sync",
            ):  # fmt: skip
                blocks[begin] = now, i
                begin, now = i + 1, []
                begins.add(i + 1)
            else:
                self._now = instruction
                now.append((instruction, self._guarded(instruction, build(self, instruction))))
        self._now = None
        return blocks

    def _guarded(self, instruction: Instruction, run: Run) -> Run:
        if instruction.guard is None:
            return run
        guard, negated = self.rows[instruction.guard], instruction.negated

        def guarded(lanes: Lanes) -> None:
            here = ~guard if negated else guard
            if lanes is not None:
                here = here & lanes
            if not here.any():
                return
            run(None if here.all() else here.copy() if here is guard else here)

        return guarded

    def _run(self, blocks: dict[int, tuple[list[tuple[Instruction, Run]], int]]) -> None:
        code = self.kernel.instructions
        alive = np.ones(self.lanes, np.bool_)
        ready: dict[int, NDArray[np.bool_]] = {0: alive.copy()}
        parked: dict[int, NDArray[np.bool_]] = {}

        def add(at: int, lanes: NDArray[np.bool_]) -> None:
            if lanes.any():
                ready[at] = ready[at] | lanes if at in ready else lanes

        while ready:
            at = min(ready)
            here = ready.pop(at)
            lanes = None if here.all() else here
            instructions, end = blocks[at]
            self.ran.update(range(at, end + 1))
            for instruction, run in instructions:
                self._now = instruction
                run(lanes)
            last = code[end]
            self._now = last
            if last.parts[0] in ("bra", "ret", "exit"):
                taken = here
                if last.guard is not None:
                    guard = self.rows[last.guard]
                    taken = here & (~guard if last.negated else guard)
                    add(end + 1, here & ~taken)
                if last.parts[0] == "bra":
                    add(self.kernel.labels[str(last.operands[0])], taken)
                else:
                    alive &= ~taken
                    self._release(alive, parked, add)
            elif last.parts[0] == "bar":
                if last.operands != (0,) or last.guard is not None:
                    raise UnsupportedError("a barrier of some threads")
                parked[end + 1] = parked[end + 1] | here if end + 1 in parked else here
                self._release(alive, parked, add)
            else:
                add(end, here)

    def _release(
        self,
        alive: NDArray[np.bool_],
        parked: dict[int, NDArray[np.bool_]],
        add: Callable[[int, NDArray[np.bool_]], None],
    ) -> None:
        """Those go on of whose programs all threads have come to a barrier."""
        if not parked:
            return
        arrived = np.logical_or.reduce(list(parked.values()))
        complete = (arrived == alive).reshape(self.programs, -1).all(1)
        self.shared.barrier(complete & arrived.reshape(self.programs, -1).any(1))
        gone = np.repeat(complete, self.threads)
        places = np.sum([x.reshape(self.programs, -1).any(1) for x in parked.values()], axis=0)
        if (places[complete] > 1).any():
            raise EmulationError("threads of a program wait at different barriers")
        for at, lanes in list(parked.items()):
            add(at, lanes & gone)
            rest = lanes & ~gone
            if rest.any():
                parked[at] = rest
            else:
                del parked[at]
