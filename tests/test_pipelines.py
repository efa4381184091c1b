"""Whether the check of a kernel's loops finds a tile that is copied too early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.pipelines import Overwritten, overwritten
from tests.compiled import RACING_KERNEL, lines_of_script

pytestmark = pytest.mark.no_typecheck

LOOP = """
    %k = ttg.local_alloc : () -> !ttg.memdesc<{buffers}x64x64xbf16, #shared, #smem, mutable>
    %q = ttg.local_alloc %1 : (tensor<64x64xbf16>) -> !ttg.memdesc<64x64xbf16, #shared, #smem>
    %2 = ttg.memdesc_index %k[%0] : !ttg.memdesc<2x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
    %3 = ttg.async_copy_global_to_local %source, %2 mask %inside
    %4 = scf.for %i = %a to %b step %c iter_args(%acc = %zeros) -> (tensor<64x64xf32>) {{
      %5 = ttg.memdesc_index %k[%i] : !ttg.memdesc<2x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
      %6 = ttg.memdesc_trans %5 {{order = array<i32: 1, 0>}}
      %7 = ttng.warp_group_dot %q, %6, %acc {{isAsync = true}}
      {wait}
      %8 = ttg.async_copy_global_to_local %source, %2 mask %inside
      {late}
      scf.yield %7
    }}
"""
WAIT = "%9:2 = ttng.warp_group_dot_wait %7, %6 {pendings = 0 : i32}"


@pytest.mark.parametrize(
    ("buffers", "wait", "late", "is_right"),
    [
        (1, "", "", False),
        (1, "", WAIT, False),
        (1, WAIT, "", True),
        (1, WAIT.replace("0 :", "1 :"), "", False),
        (2, "", "", True),
    ],
)
def test_a_tile_has_a_buffer_more_while_a_product_may_read(
    buffers: int, wait: str, late: str, is_right: bool
):
    found = overwritten(LOOP.format(buffers=buffers, wait=wait, late=late))
    assert found == ([] if is_right else [Overwritten(6, 2, buffers, 1)])


@pytest.mark.parametrize(
    ("buffers", "late", "is_right"),
    [(1, WAIT, False), (2, WAIT, True), (2, "", False), (3, "", True)],
)
def test_a_copy_before_the_product_takes_a_buffer_more(buffers: int, late: str, is_right: bool):
    lines = LOOP.format(buffers=buffers, wait="", late=late).splitlines()
    copy = next(n for n, line in enumerate(lines) if "%8 = " in line)
    product = next(n for n, line in enumerate(lines) if "%7 = " in line)
    lines.insert(product, lines.pop(copy))
    assert bool(overwritten("\n".join(lines))) != is_right


SCRIPT = (
    """
import json
import sys

import torch
import triton
import triton.language as tl
from triton.runtime import driver

from scripts.compile_ahead import Absent
from scripts.pipelines import overwritten


"""
    + RACING_KERNEL
    + """


driver.set_active(Absent(90))
x, sums = torch.empty(64, 64, dtype=torch.bfloat16), torch.empty(64, 64)
for again in (False, True):
    binary = summed.warmup(x, x, sums, 5, AGAIN=again, grid=(1,))
    print(json.dumps([again, len(overwritten(binary.asm["ttgir"]))]))
"""
)


@pytest.mark.costly(2, of="programs that measure")
def test_a_tile_that_is_wanted_twice_is_loaded_twice(tmp_path: Path):
    """As the kernels do (`kernels/tiles.py`); Triton may need it no more one day."""
    pytest.importorskip("triton")
    found = dict(json.loads(line) for line in lines_of_script(SCRIPT, tmp_path))
    assert found == {False: 1, True: 0}
