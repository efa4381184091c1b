"""What a compiled kernel takes, and does in its loops: read off its machine code.

nvdisasm prints an instruction a line, with its address, and labels where branches go:

    .L_x_3:
            /*0270*/                   LDSM.16.M88.4 R4, [R4] ;
            /*0280*/              @!P0 BRA `(.L_x_3) ;

A branch back to a label closes a loop, and an inner loop holds no other.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import triton

__all__ = ["Loop", "disassemble", "inner_loops", "resources", "serialized"]

#: By kind, what opcodes begin with.
KINDS = {
    "tensor core": ("HMMA.", "HGMMA."),
    "barrier": ("BAR.",),
    "special function": ("MUFU.",),
    "shuffle": ("SHFL.",),
    "synchronous load": ("LDG.",),
    "asynchronous copy": ("LDGSTS.", "UTMALDG."),
    "global store": ("STG.", "RED.", "ATOMG."),
    "shared load": ("LDS.", "LDS ", "LDSM."),
    "shared store": ("STS.", "STS ", "STSM."),
    "local": ("LDL.", "LDL ", "STL.", "STL "),
}
_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)")
_TARGET = re.compile(r"\(?(\.L_x_\d+)\)?")
_SHAPE = re.compile(r"^HGMMA\.(\d+)x(\d+)x(\d+)")
_MMA_SYNC = re.compile(r"^HMMA\.(\d\d?)(\d)(\d\d?)\.")
_BITS = re.compile(r"\.(8|16|32|64|128)\b")


@dataclass(frozen=True)
class Loop:
    """The instructions of a loop, which one warp issues in one turn.

    Args:
        opcodes: in their order, with a blank where operands follow.
    """

    opcodes: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        """How many instructions there are of each kind, and in all."""
        found = Counter(_kind(opcode) for opcode in self.opcodes)
        return {"instructions": len(self.opcodes)} | {kind: found[kind] for kind in KINDS}

    def tensor_flops(self) -> float:
        """Of one warp on the tensor cores; a warp has a quarter of what its group of four does."""
        return sum(map(_tensor_flops, self.opcodes))

    def bytes_of(self, *kinds: str) -> int:
        """That the 32 threads of a warp load or store."""
        return sum(32 * _width(opcode) for opcode in self.opcodes if _kind(opcode) in kinds)


def resources(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, and bytes of its stack, where spilled ones go."""
    usage = _run("cuobjdump", "-res-usage", cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise ValueError(f"resources: cuobjdump must say REG and STACK, got {usage!r}")
    return {"registers": int(found[1]), "spilled": int(found[2])}


def serialized(ptx: str) -> str:
    """Why ptxas lets no products of warp groups overlap with what is around them, or "".

    It waits for each then, which costs time and changes no result.

    Args:
        ptx: of a kernel, for an H100 if it has such products.
    """
    if "wgmma" not in ptx:
        return ""
    told = _run("ptxas", "-v", ptx.encode(), "--gpu-name=sm_90a", "-o", os.devnull)
    found = re.search(r"instructions are serialized due to (.*) (?:in|for) the function", told)
    return " ".join(found[1].split()) if found else ""


def disassemble(cubin: bytes) -> str:
    """The machine code of a kernel, as nvdisasm prints it."""
    return _run("nvdisasm", "-c", cubin)


def inner_loops(code: str) -> list[Loop]:
    """The loops without another loop in them, in the order of the code.

    Args:
        code: of one kernel, as `disassemble` has it.
    """
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in code.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(opcodes)
        elif instruction := _INSTRUCTION.match(line):
            opcode, operands = instruction[1], instruction[2]
            if opcode.startswith("BRA") and (target := _TARGET.search(operands)):
                branches.append((len(opcodes), target[1]))
            opcodes.append(f"{opcode} ")
    spans = {(labels[to], at + 1) for at, to in branches if labels.get(to, at + 1) <= at}
    return [Loop(tuple(opcodes[begin:end])) for begin, end in sorted(_innermost(spans))]


def _innermost(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of spans with one beginning the longest, and of these such as hold no other."""
    ends: dict[int, int] = {}
    for begin, end in spans:
        ends[begin] = max(end, ends.get(begin, 0))
    whole = list(ends.items())
    return [
        (begin, end)
        for begin, end in whole
        if not any(begin <= x and y <= end and (x, y) != (begin, end) for x, y in whole)
    ]


def _kind(opcode: str) -> str | None:
    return next((kind for kind, begins in KINDS.items() if opcode.startswith(begins)), None)


def _tensor_flops(opcode: str) -> float:
    if found := _SHAPE.match(opcode):
        m, n, k = map(int, found.groups())
        return 2 * m * n * k / 4
    if found := _MMA_SYNC.match(opcode):
        m, n, k = map(int, found.groups())
        return 2 * m * n * k
    return 0


def _width(opcode: str) -> int:
    """Bytes of one thread."""
    if opcode.startswith(("LDSM", "STSM")):
        matrices = re.search(r"\.MT?88\.(\d)", opcode)
        return 4 * int(matrices[1]) if matrices else 4
    sizes = _BITS.findall(opcode)
    return int(sizes[-1]) // 8 if sizes else 4


def _run(tool: str, option: str, code: bytes, *options: str) -> str:
    """What one of the tools that come with Triton prints of a kernel."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel"
        path.write_bytes(code)
        command = [program, option, *options, path]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{tool} {option} ended with {run.returncode}: {run.stderr.strip()}")
    return run.stdout + run.stderr
