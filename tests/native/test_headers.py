"""Each header of `csrc/` and of these tests compiles alone, for each instruction set."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from .compiler import arm_compiler, compiler

pytestmark = pytest.mark.no_typecheck

ROOT = Path(__file__).parents[2]
HEADERS = [
    str(path.relative_to(ROOT))
    for folder in ("csrc", "tests/native")
    for path in sorted((ROOT / folder).glob("*.h"))
]
# They alone know torch, and are compiled once, for any processor.
OF_OPS = [header for header in HEADERS if header.startswith("csrc/op_")]
TORCH_HEADERS = str(Path(torch.__file__).parent / "include")
OF_TORCH = [
    *("-DTORCH_TARGET_VERSION=0x020b000000000000", "-fvisibility=hidden"),
    *("-isystem", TORCH_HEADERS),
]
# As in csrc/kernel_*.cpp; the first is what a header says itself.
INSTRUCTIONS = {
    "default": [],
    "avx2": ["-mavx2", "-mfma", "-DRELPOS_LANES=8", "-DRELPOS_MR=6", "-DRELPOS_NR_VECTORS=2"],
    "avx512": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma"),
        *("-DRELPOS_LANES=16", "-DRELPOS_MR=8", "-DRELPOS_NR_VECTORS=2"),
    ],
    "amx": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mavx2", "-mfma"),
        *("-DRELPOS_LANES=16", "-DRELPOS_MR=8", "-DRELPOS_NR_VECTORS=2", "-DRELPOS_TILES=1"),
        "-DRELPOS_INTRINSICS",
    ],
    "amx, split": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mavx2", "-mfma"),
        *("-DRELPOS_LANES=16", "-DRELPOS_MR=8", "-DRELPOS_NR_VECTORS=2", "-DRELPOS_TILES=1"),
        *("-DRELPOS_INTRINSICS", "-DRELPOS_PARTS=2"),
    ],
    "neon": ["-DRELPOS_LANES=4", "-DRELPOS_MR=5", "-DRELPOS_NR_VECTORS=4", "-DRELPOS_NEON"],
    "bfmmla": [
        *("-march=armv8.2-a+bf16", "-DRELPOS_LANES=16", "-DRELPOS_MR=8", "-DRELPOS_NR_VECTORS=2"),
        *("-DRELPOS_TILES=1", "-DRELPOS_BFMMLA", "-Wno-psabi"),
    ],
    "amx, emulated": [
        *("-DRELPOS_LANES=16", "-DRELPOS_MR=8", "-DRELPOS_NR_VECTORS=2", "-DRELPOS_TILES=1"),
        *("-DRELPOS_EMULATED_TILES", "-Wno-psabi"),
    ],
}
ARM = ("neon", "bfmmla")
CASES = [
    (header, name)
    for header in HEADERS
    if header not in OF_OPS
    for name in (INSTRUCTIONS if header.startswith("csrc") else ["default"])
]


@pytest.mark.parametrize(("header", "instructions"), CASES)
@pytest.mark.costly(20)
def test_a_header_compiles_alone(header, instructions):
    if instructions in ARM:
        command = arm_compiler()
    elif instructions == "default" or platform.machine() in ("x86_64", "AMD64"):
        command = compiler()
    else:
        pytest.skip("these instructions are those of x86-64")
    text = f'#include "{header}"\n#include "{header}"\n'
    check([*command, "-Werror", *INSTRUCTIONS[instructions]], text)


@pytest.mark.parametrize("header", OF_OPS)
def test_a_header_of_the_ops_compiles_alone(header):
    check([*compiler(), "-Werror", *OF_TORCH], f'#include "{header}"\n#include "{header}"\n')


def test_the_ops_compile_for_64_bit_arm():
    """The headers of torch are the same for it; its library, to link with, is not here."""
    check([*arm_compiler(), *OF_TORCH], '#include "csrc/ops.cpp"\n')


def check(compile: list[str], text: str) -> None:
    """The text compiles."""
    done = subprocess.run(
        [*compile, "-std=c++17", "-Wall", "-Wextra", "-fsyntax-only", "-x", "c++", "-"],
        input=text,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_opens_with_what_it_holds(header):
    first, *_ = (ROOT / header).read_text().splitlines()
    assert first.startswith("// ")
