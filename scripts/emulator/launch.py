"""Triton's compiled kernels over tensors of the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from triton import OutOfResources
from triton.runtime import driver

from relpos.ops.triton.recorded import without_records

from ..compile_ahead import Absent
from .arithmetic import BUILDERS as ARITHMETIC
from .errors import UnsupportedError
from .machine import DTYPES, Machine, Mode, Run
from .memory import GlobalMemory
from .movement import BUILDERS as MOVEMENT
from .ptx import Instruction, Kernel, Parameter, read_kernel
from .tensor_cores import BUILDERS as TENSOR_CORES

__all__ = ["DEFAULT", "SHARED_MEMORY", "Launches", "compiled", "emulated", "run_kernel"]

# What is replaced in them, no type knows.
call_plan: Any = importlib.import_module("relpos.ops.triton.call_plan")
launch: Any = importlib.import_module("relpos.ops.triton.launch")
tuning: Any = importlib.import_module("relpos.ops.triton.tuning")
package: Any = importlib.import_module("relpos.ops.triton")

DEFAULT = Mode()
#: Bytes that a program may have.
SHARED_MEMORY = {
    "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10,
}  # fmt: skip
_BUILDERS = ARITHMETIC | MOVEMENT | TENSOR_CORES
_LANES_AT_ONCE = 8192
_BYTES_AT_ONCE = 1 << 29  # of registers
_TYPES = {"i1": "u8", "u1": "u8", "fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp64": "f64"}


class _Device(Absent):
    """A GPU that is not there, by whose number Triton keeps what it has compiled."""

    def get_current_device(self) -> int:
        return self.architecture


@dataclass
class Launches:
    """What has been run.

    Args:
        kernels: their names, in order.
        shares: of the instructions of each how many have run at least once.
    """

    kernels: list[str] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


def build(machine: Machine, instruction: Instruction) -> Run:
    """What runs an instruction."""
    builder = _BUILDERS.get(instruction.parts[0])
    if builder is None:
        raise UnsupportedError("instruction not known")
    return builder(machine, instruction)


@contextmanager
def _target(architecture: str) -> Iterator[None]:
    """Within it, Triton compiles for a GPU as "sm_90"."""
    device: Any = _Device(int(architecture.removeprefix("sm_")))
    before = driver._active
    driver.set_active(device)
    try:
        yield
    finally:
        driver._active = before


def compiled(architecture: str, kernel: Any, arguments: dict[str, Any], **options: int) -> Any:
    """A kernel of Triton's for a GPU as "sm_90", without one; `options` are its `num_warps` etc."""
    with _target(architecture):
        return kernel.warmup(**arguments, grid=(1,), **options)


@lru_cache(maxsize=64)
def _read(text: str) -> Kernel:
    return read_kernel(text)


def run_kernel(
    binary: Any,
    programs: int,
    arguments: dict[str, Any],
    mode: Mode = DEFAULT,
    *,
    with_margins: Container[str] = (),
) -> float:
    """`programs` of a compiled kernel; the share of its instructions that ran at least once.

    Args:
        binary: Triton's, as `kernel.warmup` returns it.
        programs: of it.
        arguments: by name; tensors of the CPU.
        mode: when what is asynchronous happens.
        with_margins: arguments of which the kernel may access what lies beside them in storage.

    Raises:
        EmulationError: if the kernel does what it may not, or the emulator cannot.
    """
    kernel, metadata = _read(binary.asm["ptx"]), binary.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size or metadata.num_ctas != 1:
        raise UnsupportedError(f"{kernel.name}: scratch memory, or clusters")
    memory = GlobalMemory(hazards=mode.hazards)
    values = [
        _bits(kind, value, memory, with_storage=name in with_margins)
        for name, kinds in binary.src.signature.items()
        for kind, value in _flat(kinds, arguments[name])
    ]
    parameters = _bound(kernel.parameters, values)
    threads = 32 * metadata.num_warps
    bytes_of_lane = sum(np.dtype(DTYPES[x]).itemsize for x in kernel.registers.values())
    most = max(1, min(_LANES_AT_ONCE, _BYTES_AT_ONCE // bytes_of_lane) // threads)
    size = -(-programs // -(-programs // most))
    ran: set[int] = set()
    for first in range(0, programs, size):
        machine = Machine(
            kernel, first=first, programs=min(size, programs - first), total=programs,
            threads=threads, shared_bytes=metadata.shared, memory=memory, parameters=parameters,
            mode=mode,
        )  # fmt: skip
        machine.run(build)
        ran |= machine.ran
    return len(ran) / len(kernel.instructions)


def _flat(kinds: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """The arguments that a compiled kernel takes, of nested tuples, with their types."""
    if isinstance(kinds, tuple):
        for kind, part in zip(kinds, value, strict=True):
            yield from _flat(kind, part)
    elif kinds != "constexpr":
        yield kinds, value


def _bits(kind: str, value: Any, memory: GlobalMemory, *, with_storage: bool) -> int:
    """How an argument is handed over."""
    if kind[0] == "*":
        return memory.address(value, with_storage=with_storage)
    of_ptx = _TYPES.get(kind, kind.replace("i", "s"))
    if of_ptx not in DTYPES or of_ptx == "bf16":
        raise UnsupportedError(f"an argument of type {kind}")
    number = np.array(value).astype(DTYPES[of_ptx])
    return int(number.view(f"u{number.itemsize}"))


def _bound(parameters: tuple[Parameter, ...], values: list[int]) -> dict[str, int]:
    """The bits of each parameter; those left over are addresses of scratch memory, which is none.

    Raises:
        UnsupportedError: if there are not as many.
    """
    missing = len(parameters) - len(values)
    if missing not in (0, 1, 2):
        raise UnsupportedError(f"{len(values)} arguments for {len(parameters)} parameters")
    names = (x.name for x in parameters)
    return dict(zip(names, [*values, *[0] * missing], strict=True))


@contextmanager
def emulated(architecture: str, *, mode: Mode = DEFAULT, tile: int = 0) -> Iterator[Launches]:
    """Within it, calls of the op with `backend="triton"` over tensors of the CPU are emulated.

    Args:
        architecture: of the GPU, as "sm_90".
        mode: when what is asynchronous happens.
        tile: of those that a kernel may have, the best first, the first that is tried: what takes
            more shared memory than there is makes place for the next one. -1: the least.
    """
    room = SHARED_MEMORY[architecture]
    capability = divmod(int(architecture.removeprefix("sm_")), 10)
    found = Launches()

    def run(
        kernel: Any, programs: int, *arguments: Any, shape: Any, known: Any = None, **constants: Any
    ) -> None:
        binary = kernel.warmup(*arguments, **constants, grid=(1,), **shape.options)
        if binary.metadata.shared > room:
            raise OutOfResources(binary.metadata.shared, room, "shared memory")
        found.kernels.append(kernel.__name__)
        named = dict(zip(kernel.arg_names, arguments, strict=False)) | constants
        # Rows of stored scores have zeros before the first one (`stored_scores.py`).
        share = run_kernel(binary, programs, named, mode, with_margins=("stored",))
        found.shares.append(share)

    def tiles(kernel: str, call: Any) -> list[Any]:
        shapes = tuning.tile_shapes_on_cuda(kernel, call, capability)
        return shapes[min(tile, len(shapes) - 1) :] if tile >= 0 else shapes[-1:]

    replaced = (
        (launch, "run_programs", run), (launch, "tile_shapes", tiles),
        (call_plan, "capability_of", lambda _: capability),
        (package, "unavailable", lambda *_: None), (package, "unsupported", lambda *_: None),
    )  # fmt: skip
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    # What is allocated and not written, reads as NaN.
    torch.use_deterministic_algorithms(True, warn_only=True)
    for owner, name, new in replaced:
        setattr(owner, name, new)
    try:
        with _target(architecture), without_records():
            yield found
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)
