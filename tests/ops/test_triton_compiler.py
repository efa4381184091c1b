"""What Triton and ptxas make of the kernels, for GPUs that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from relpos import backends
from tests.compiled import lines_of_script
from tests.ops.backends import ON_GPU

pytestmark = [
    pytest.mark.skipif(bool(backends()["triton"]), reason=str(backends()["triton"])),
    pytest.mark.skipif(ON_GPU, reason="a GPU's time: it runs where there is none"),
    pytest.mark.no_typecheck,
]

ROOT = Path(__file__).parents[2]
LENGTHS = ["lengths", "short lengths", "local lengths", "local short lengths", "wide lengths"]
# Bytes of memory that a program may have on one processor: an H100; a card for games.
MEMORY = {("sm_90", "best"): 227 << 10, ("sm_86", "least"): 99 << 10}
CALLS = {
    ("sm_90", "best"): [
        "plain", "shaw", "huang", "mask", "logits", "wide heads", "wide", "local", "decoding",
        "queries", "softcap", "dropout", "additive", "everything",
    ],
    ("sm_86", "least"): [
        "shaw", "everything", "grid", "widest", "widest float32", "wide, in parts", "float32",
        "local", "local, everything", "local grid", "neighborhoods",
    ],
}  # fmt: skip
CALLS_WITH_REGISTERS = [
    "plain", "shaw", "wide heads", "huang", "logits", "queries", "grid", "grid by rows",
    "joint bias", "long axis",
]  # fmt: skip
# Of which an H200 took least time all the same (`benchmarks/results/tiles.json`).
TIMED = {("sm_90", "wide heads", "dq_kernel")}
WITHOUT_PRODUCTS = {
    "bias_rows_kernel", "delta_kernel", "document_bounds_kernel", "document_overlaps_kernel",
    "end_rows_kernel", "key_overlaps_kernel", "keys_in_any_kernel", "marks_kernel",
    "range_bounds_kernel",
}  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "scripts.compile_ahead", *arguments],
        capture_output=True, text=True, check=False, env=environment, cwd=ROOT,
    )  # fmt: skip


def compiled_ahead(*arguments: str) -> list[dict]:
    """What the compiler says of each kernel; there are some."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stdout.splitlines()[-1])
    assert kernels
    return kernels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "tiles", "call"),
    [(*tiles, call) for tiles, calls in CALLS.items() for call in calls],
)
@pytest.mark.costly(2)
def test_the_compiler_takes_every_kernel(gpu: str, tiles: str, call: str):
    """Triton and ptxas for a GPU that need not be there: the interpreter takes more than they."""
    kernels = compiled_ahead(gpu, tiles, call)
    stored = [x for x in kernels if "stored" in x["kernel"]]
    dkdv = [x for x in kernels if x["kernel"] == "dkdv_kernel"]
    if call in ("wide", "wide, in parts"):
        assert stored
        assert dkdv
        assert all(x["in parts"] == (call == "wide, in parts") for x in dkdv)
    for kernel in kernels:
        assert kernel["shared"] <= MEMORY[gpu, tiles], kernel
        assert not kernel["overwritten"], kernel
        # Float32 products of heads so wide are made one by one (`widest_of_three_products`).
        one_by_one = call == "widest float32" or kernel["kernel"] in WITHOUT_PRODUCTS
        assert kernel["tensor cores"] == (not one_by_one), kernel


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS_WITH_REGISTERS)
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.costly(1)
def test_no_kernel_has_more_to_keep_than_there_are_registers(gpu: str, call: str):
    """With far too much ptxas keeps nearly nothing, and spills thousands of bytes."""
    for kernel in compiled_ahead("--registers", gpu, "best", call):
        most = 1600 if (gpu, call, kernel["kernel"]) in TIMED else 1024
        assert kernel["spilled"] <= most, kernel


@pytest.mark.parametrize("call", LENGTHS)
@pytest.mark.costly(1)
def test_no_kernel_is_compiled_anew_for_another_length(call: str, tmp_path: Path):
    """Lengths that are 1, odd, and a multiple of 16: to Triton they are not the same.

    Up to 32 queries have tiles of their own.
    """
    script = f"""
from scripts.compile_ahead import CALLS, compile_call, compile_nothing

compile_nothing()
for kernel in compile_call("sm_90", CALLS[{call!r}], tiles=lambda _, shapes: shapes[0]):
    print(kernel.name, kernel.variants)
"""
    kernels = [line.split() for line in lines_of_script(script, tmp_path)]
    assert {variants for _, variants in kernels} == {"1"}
    assert ("stored_dq_kernel" in {name for name, _ in kernels}) == ("wide" in call)


@pytest.mark.parametrize("gpu", ["xx", "90", "sm_90a", "sm_1", "sm_105"])
@pytest.mark.costly(1)
def test_what_is_compiled_for_must_be_an_architecture(gpu: str):
    done = run(gpu, "best", "plain")
    assert done.returncode == 2
    assert f"argument sm_NN: must be as sm_80, sm_86, sm_90 or sm_120, got '{gpu}'" in done.stderr
