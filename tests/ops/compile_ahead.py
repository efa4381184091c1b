"""Compile the Triton kernels of some calls for a GPU that need not be there: prints JSON.

python tests/ops/compile_ahead.py [--registers] sm_90 best|least CALL ...

What the interpreter takes, the compiler may not: types, layouts, the memory of a processor. Each
kernel goes through Triton and ptxas for the tiles that a GPU would get first (`best`) or those it
falls back to last (`least`). `--registers` runs ptxas once more for what it says of registers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from relpos import GridTerms, OffsetTable, Terms, attention

launch = importlib.import_module("relpos.ops.triton.launch")
tuning = importlib.import_module("relpos.ops.triton.tuning")
package = importlib.import_module("relpos.ops.triton")

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


def compiled(
    kernel: Any, *arguments: Any, shape: Any, count_registers: bool, **constants: Any
) -> dict[str, Any]:
    """What the compiler says of one kernel."""
    binary = kernel.warmup(
        *arguments, **constants, grid=(1,), num_warps=shape.warps, num_stages=shape.stages
    )
    return {
        "kernel": kernel.fn.__name__,
        "shape": list(shape),
        "shared": binary.metadata.shared,
        "tensor cores": "mma" in binary.asm["ptx"],
        "variants": sum(len(kernels) for kernels, *_ in kernel.device_caches.values()),
    } | (registers(binary.asm["ptx"]) if count_registers else {})


def registers(ptx: str) -> dict[str, int | None]:
    """How many registers a thread has, and how many bytes it spills."""
    report = _ptxas(ptx)
    found = {
        "registers": re.search(r"Used (\d+) registers", report),
        "spilled": re.search(r"(\d+) bytes spill stores", report),
    }
    return {name: int(match.group(1)) if match else None for name, match in found.items()}


def _ptxas(ptx: str) -> str:
    """Its report on registers."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    target = re.search(r"\.target (\w+)", ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        run = subprocess.run(
            [tool, "-v", f"--gpu-name={target.group(1)}", source, "-o", source.with_suffix(".o")],
            capture_output=True,
            text=True,
            check=True,
        )
    return run.stderr


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


def table(heads: int, left: int, right: int, width: int | None, **options: Any) -> OffsetTable:
    shape = (heads, left + right + 1)
    return OffsetTable(random(*shape) if width is None else random(*shape, width), -left, **options)


def sequence(
    width: int, length: int = LENGTH, dtype: torch.dtype = torch.bfloat16, **options: Any
) -> None:
    """One call over a sequence, forward and backward."""
    key_heads = options.pop("key_heads", 4)
    terms = options.pop("terms", Terms())
    q = random(2, 4, length, width, dtype=dtype)
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


def logits(q: Tensor) -> Terms:
    return Terms(keys=table(1, 1023, 0, 16, beyond="zero"), q_rel=random(*q.shape[:3], 16))


def grid(q: Tensor) -> GridTerms:
    width = q.shape[3]
    axes = tuple(
        Terms(keys=axis_table, queries=axis_table, values=axis_table)
        for axis_table in (table(1, 15, 15, width), table(1, 31, 31, width))
    )
    return GridTerms((16, 32), axes, random(4, 31, 63))


def chunks(length: int, size: int) -> Tensor:
    """Ranges of keys: each query's chunk and the one before it."""
    first = torch.arange(length) // size * size
    return torch.stack([first - size, first + size], 1).unsqueeze(0)


CALLS: dict[str, Any] = {
    "plain": lambda: sequence(64, causal=True),
    "shaw": lambda: sequence(64, terms=shaw),
    "wide heads": lambda: sequence(128, terms=shaw),
    "lengths": lambda: [sequence(64, n, terms=shaw, causal=True) for n in (31, 32 + 16, 100, 1)],
    "huang": lambda: sequence(
        64, terms=lambda q: Terms(keys=table(1, LENGTH - 1, 0, q.shape[3])), causal=True
    ),
    "logits": lambda: sequence(64, terms=logits, causal=True),
    "everything": lambda: sequence(
        80, terms=everything, causal=True, key_heads=2, dropout=0.1,
        documents=torch.arange(LENGTH)[None] // 100,
    ),
    "mask": lambda: sequence(
        64, terms=lambda q: Terms(bias=table(4, 64, 64, None)),
        mask=random(2, 1, LENGTH, LENGTH, dtype=torch.float32),
    ),
    "grid": lambda: sequence(64, terms=grid),
    "local": lambda: sequence(
        64, terms=shaw, causal=True, window=(256, None), key_ranges=chunks(LENGTH, 128),
        softcap=30.0,
    ),
    "local lengths": lambda: [
        sequence(64, n, terms=shaw, window=(40, 16), key_ranges=chunks(n, 16), softcap=30.0)
        for n in (31, 32 + 16, 100, 1)
    ],
    "local, everything": lambda: sequence(
        80, terms=everything, key_heads=2, dropout=0.1, window=(200, 50),
        key_ranges=chunks(LENGTH, 128), softcap=50.0,
        mask=random(2, 1, LENGTH, LENGTH, dtype=torch.float32),
    ),
    "local grid": lambda: sequence(
        64, terms=grid, window=((3, 3), (5, None)), key_ranges=chunks(LENGTH, 128), softcap=30.0
    ),
    "widest": lambda: sequence(256, terms=shaw),
    "float32": lambda: sequence(64, terms=shaw, dtype=torch.float32),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architecture", metavar="sm_NN")
    parser.add_argument("tiles", choices=("best", "least"))
    parser.add_argument("calls", nargs="+", choices=tuple(CALLS), metavar="CALL")
    parser.add_argument("--registers", action="store_true", help="and spilled bytes")
    options = parser.parse_args()
    driver.set_active(Absent(int(options.architecture.removeprefix("sm_"))))
    # Tensors of the CPU stand for those of a GPU.
    package.unavailable = package.unsupported = lambda *_: None
    found: list[dict[str, Any]] = []

    def compile_only(kernel: Any, programs: int, *arguments: Any, **named: Any) -> None:
        found.append(
            {"call": name}
            | compiled(kernel, *arguments, count_registers=options.registers, **named)
        )

    def tile_shapes(kernel: str, call: Any) -> list[Any]:
        shapes = tuning.tile_shapes_on_cuda(kernel, call)
        return [shapes[0 if options.tiles == "best" else -1]]

    launch.run_programs, launch.tile_shapes = compile_only, tile_shapes
    for name in options.calls:
        CALLS[name]()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
