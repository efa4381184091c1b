"""Compile the Triton kernels of some calls for a GPU that need not be there: prints JSON.

    python -m scripts.compile_ahead [--registers] sm_90 best|least CALL ...

What the interpreter takes, the compiler may not: types, layouts, the memory of a processor. Each
kernel goes through Triton and ptxas for the tiles that a GPU would get first (`best`) or those it
falls back to last (`least`). `--registers` asks what the machine code takes of registers, and why
ptxas "serialized" products of warp groups, where it did.
"overwritten" is what a loop's copies overwrite too early (`pipelines.py`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import compiler
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from relpos import GridTerms, OffsetTable, Terms, attention, neighborhood_ranges
from relpos.ops.triton.recorded import without_records

from .pipelines import overwritten
from .sass import resources, serialized

__all__ = [
    "Compiled", "chunks", "compile_call", "compile_nothing", "on_grid", "random", "sequence",
    "table",
]  # fmt: skip

# What is replaced in them, no type knows.
call_plan: Any = importlib.import_module("relpos.ops.triton.call_plan")
launch: Any = importlib.import_module("relpos.ops.triton.launch")
tuning: Any = importlib.import_module("relpos.ops.triton.tuning")
stored_scores: Any = importlib.import_module("relpos.ops.triton.stored_scores")
package: Any = importlib.import_module("relpos.ops.triton")

LENGTH = 512


class Absent:
    """The driver of a GPU that is not there."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled(NamedTuple):
    """A kernel of a call, as Triton compiled it.

    Args:
        name: of the kernel.
        shape: of its tile.
        binary: Triton's, with `asm` and `metadata`.
        variants: how many there are of it by now.
        constants: what it is compiled for besides its arguments' types.
        key: by which a launch finds it again, or None.
    """

    name: str
    shape: Any
    binary: Any
    variants: int
    constants: dict[str, Any]
    key: Any = None


def compile_call(
    architecture: str, call: Callable[[], Any], *, tiles: Callable[[str, list[Any]], Any]
) -> list[Compiled]:
    """The kernels that a call would run, in order; nothing runs.

    The process is of no use for anything else afterwards.

    Args:
        architecture: as "sm_90".
        call: of the op, with `backend="triton"` and tensors of the CPU.
        tiles: chooses a tile, given what `tuning` calls the kernel and those that it may have, the
            best first.
    """
    number = int(architecture.removeprefix("sm_"))
    absent: Any = Absent(number)
    capability = divmod(number, 10)
    driver.set_active(absent)
    # Tensors of the CPU stand for those of a GPU.
    package.unavailable = package.unsupported = lambda *_: None
    found: list[Compiled] = []

    def compile_only(
        kernel: Any, programs: int, *arguments: Any, shape: Any, known: Any = None,
        **constants: Any,
    ) -> None:  # fmt: skip
        binary = kernel.warmup(*arguments, **constants, grid=(1,), **shape.options)
        variants = sum(len(kernels) for kernels, *_ in kernel.device_caches.values())
        name = kernel.fn.__name__
        key = None if known is None else launch.key_of(kernel, shape, known, constants)
        found.append(Compiled(name, shape, binary, variants, constants, key))

    launch.run_programs = compile_only
    call_plan.capability_of = lambda device: capability
    launch.tile_shapes = lambda kernel, call: [
        tiles(kernel, tuning.tile_shapes_on_cuda(kernel, call, capability))
    ]
    with without_records():
        call()
    return found


def compile_nothing() -> None:
    """Have Triton find what it would compile, and put any object in the place of each binary.

    For the whole process, and before the first call: a kernel keeps the compiler that it finds.
    """
    compiler.compile = lambda *_given, **_options: object()


def described(compiled: Compiled, *, count_registers: bool) -> dict[str, Any]:
    """What the compiler says of one kernel."""
    binary = compiled.binary
    return {
        "kernel": compiled.name,
        "shape": list(compiled.shape),
        "shared": binary.metadata.shared,
        "tensor cores": "mma" in binary.asm["ptx"],
        "overwritten": overwritten(binary.asm["ttgir"]),
        "in parts": compiled.constants.get("IN_PARTS", False),
    } | (
        resources(binary.asm["cubin"]) | {"serialized": serialized(binary.asm["ptx"])}
        if count_registers
        else {}
    )


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal numbers that want a gradient."""
    return torch.randn(*shape).to(dtype).requires_grad_()


def table(heads: int, left: int, right: int, width: int | None, **options: Any) -> OffsetTable:
    """A table for the offsets `-left..right`; of a bias, where `width` is None."""
    shape = (heads, left + right + 1)
    return OffsetTable(random(*shape) if width is None else random(*shape, width), -left, **options)


def sequence(
    width: int, length: int = LENGTH, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> None:
    """One call over a sequence, forward and backward."""
    key_heads, queries = options.pop("key_heads", 4), options.pop("queries", length)
    terms: Any = options.pop("terms", Terms())
    q = random(2, 4, queries, width, dtype=dtype)
    k, v = (random(2, key_heads, length, width, dtype=dtype) for _ in range(2))
    terms = terms(q) if callable(terms) else terms
    terms = terms.map(lambda x: x.detach().to(dtype).requires_grad_())
    output, lse = attention(q, k, v, terms, backend="triton", return_lse=True, **options)
    (output.float().sum() + lse.sum()).backward()


def shaw(q: Tensor) -> Terms:
    width = q.shape[3]
    return Terms(keys=table(1, 64, 64, width), values=table(4, 64, 64, width))


def everything(q: Tensor) -> Terms:
    width = q.shape[3]
    return Terms(
        table(4, 64, 64, width), table(1, 60, 64, width), table(4, 128, 128, None),
        table(1, 64, 64, width),
    )  # fmt: skip


def queries(q: Tensor) -> Terms:
    return Terms(queries=table(1, 64, 64, q.shape[3]))


def logits(q: Tensor) -> Terms:
    return Terms(keys=table(1, 1023, 0, 16, beyond="zero"), q_rel=random(*q.shape[:3], 16))


def wide(q: Tensor) -> Terms:
    length, width = q.shape[2:]
    return Terms(
        table(4, length, length, width), table(1, length, length, width),
        values=table(1, length, length, width),
    )  # fmt: skip


def in_parts(call: Callable[[], Any]) -> None:
    """A call whose `dS` is stored a few queries at a time, where it is stored."""
    most = stored_scores._MOST_ELEMENTS
    stored_scores._MOST_ELEMENTS = 1 << 20
    try:
        call()
    finally:
        stored_scores._MOST_ELEMENTS = most


def grid(q: Tensor) -> GridTerms:
    width = q.shape[3]
    axes = tuple(
        Terms(keys=axis_table, queries=axis_table, values=axis_table)
        for axis_table in (table(1, 15, 15, width), table(1, 31, 31, width))
    )
    return GridTerms((16, 32), axes, random(4, 31, 63))


def on_grid(
    shape: tuple[int, ...], *names: str, bias: bool = False
) -> Callable[[Tensor], GridTerms]:
    """Tables by these names along each axis of a grid, and a joint bias."""

    def of_axis(size: int, width: int) -> Terms:
        tables: dict[str, Any] = {name: table(1, size - 1, size - 1, width) for name in names}
        return Terms(**tables)

    def terms(q: Tensor) -> GridTerms:
        axes = tuple(of_axis(size, q.shape[3]) for size in shape)
        joint = random(q.shape[1], *(2 * size - 1 for size in shape)) if bias else None
        return GridTerms(shape, axes, joint)

    return terms


def chunks(length: int, size: int) -> Tensor:
    """Ranges of keys: each query's chunk and the one before it."""
    first = torch.arange(length) // size * size
    return torch.stack([first - size, first + size], 1).unsqueeze(0)


CALLS: dict[str, Any] = {
    "plain": lambda: sequence(64, causal=True),
    "shaw": lambda: sequence(64, terms=shaw),
    "wide heads": lambda: sequence(128, terms=shaw),
    "queries": lambda: sequence(64, terms=queries),
    "softcap": lambda: sequence(64, terms=shaw, softcap=30.0),
    "dropout": lambda: sequence(64, terms=shaw, dropout=0.1),
    "additive": lambda: sequence(
        64, terms=shaw, mask=torch.randn(2, 1, 1, LENGTH, dtype=torch.bfloat16)
    ),
    "lengths": lambda: [sequence(64, n, terms=shaw, causal=True) for n in (33, 32 + 16, 100)],
    "short lengths": lambda: [sequence(64, n, terms=shaw, causal=True) for n in (31, 16, 1)],
    "huang": lambda: sequence(
        64, terms=lambda q: Terms(keys=table(1, LENGTH - 1, 0, q.shape[3])), causal=True
    ),
    "logits": lambda: sequence(64, terms=logits, causal=True),
    "wide": lambda: sequence(64, 1024, terms=wide, key_heads=2, dropout=0.1),
    "wide, in parts": lambda: in_parts(lambda: sequence(128, 1024, terms=wide, causal=True)),
    "wide lengths": lambda: [sequence(64, n, terms=wide) for n in (1025, 1040, 1201)],
    "everything": lambda: sequence(
        80, terms=everything, causal=True, key_heads=2, dropout=0.1,
        documents=torch.arange(LENGTH)[None] // 100,
    ),
    "mask": lambda: sequence(
        64, terms=lambda q: Terms(bias=table(4, 64, 64, None)),
        mask=random(2, 1, LENGTH, LENGTH, dtype=torch.float32),
    ),
    "grid": lambda: sequence(64, terms=grid),
    "grid by rows": lambda: [sequence(d, terms=on_grid((16, 32), "keys")) for d in (64, 80)],
    "joint bias": lambda: sequence(32, terms=on_grid((16, 32), bias=True)),
    "long axis": lambda: sequence(64, terms=on_grid((4, 128), "keys")),
    "local": lambda: sequence(
        64, terms=shaw, causal=True, window=(256, None), key_ranges=chunks(LENGTH, 128),
        softcap=30.0,
    ),
    "local lengths": lambda: [
        sequence(64, n, terms=shaw, window=(40, 16), key_ranges=chunks(n, 16), softcap=30.0)
        for n in (33, 32 + 16, 100)
    ],
    "local short lengths": lambda: [
        sequence(64, n, terms=shaw, window=(40, 16), key_ranges=chunks(n, 16), softcap=30.0)
        for n in (31, 16, 1)
    ],
    "local, everything": lambda: sequence(
        80, terms=everything, key_heads=2, dropout=0.1, window=(200, 50),
        key_ranges=chunks(LENGTH, 128), softcap=50.0,
        mask=random(2, 1, LENGTH, LENGTH, dtype=torch.float32),
    ),
    "local grid": lambda: sequence(
        64, terms=grid, window=((3, 3), (5, None)), key_ranges=chunks(LENGTH, 128), softcap=30.0
    ),
    "neighborhoods": lambda: sequence(
        32, terms=on_grid((16, 32), bias=True),
        key_ranges=[neighborhood_ranges(n, 7) for n in (16, 32)],
    ),
    "decoding": lambda: sequence(64, LENGTH, queries=1, terms=shaw, causal=True),
    "widest": lambda: sequence(256, terms=shaw),
    "float32": lambda: sequence(64, terms=shaw, dtype=torch.float32),
    "widest float32": lambda: sequence(
        256, terms=lambda q: Terms(keys=shaw(q).keys), dtype=torch.float32
    ),
}  # fmt: skip


def _architecture(text: str) -> str:
    """`sm_NN` of the GPUs that the kernels are made for."""
    if not re.fullmatch(r"sm_(8[0679]|90|10[03]|110|12[01])", text):
        raise argparse.ArgumentTypeError(f"must be as sm_80, sm_86, sm_90 or sm_120, got {text!r}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architecture", metavar="sm_NN", type=_architecture)
    parser.add_argument("tiles", choices=("best", "least"))
    parser.add_argument("calls", nargs="+", choices=tuple(CALLS), metavar="CALL")
    parser.add_argument("--registers", action="store_true", help="and spilled bytes")
    options = parser.parse_args()
    found = [
        {"call": name} | described(compiled, count_registers=options.registers)
        for name in options.calls
        for compiled in compile_call(
            options.architecture, CALLS[name],
            tiles=lambda _, shapes: shapes[0 if options.tiles == "best" else -1],
        )
    ]  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
