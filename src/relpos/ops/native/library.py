"""The compiled kernel (`csrc/`), linked into torch when this module is imported.

Not later: `torch.compile` and a loaded export must find its operators, with shapes and derivatives,
before any call.
"""

from __future__ import annotations

from pathlib import Path

import torch

from .ops import NATIVE

__all__ = ["MISSING", "instructions"]


def _link() -> str | None:
    """None once torch has the kernel's operators, else why it has not."""
    here = Path(__file__).parent
    compiled = [*here.glob("_kernel*.so")]
    if not compiled:
        reason = here / "missing.txt"
        return (
            reason.read_text().strip()
            if reason.exists()
            else "relpos was installed without its compiled kernel"
        )
    try:
        torch.ops.load_library(compiled[0])
    except OSError as error:
        return f"its compiled kernel does not fit this torch or machine: {error}"
    difference = NATIVE.difference()
    if difference is not None:
        return f"its compiled kernel is of another version of relpos: it has {difference}"
    NATIVE.define_compiled()
    return None


MISSING = _link()


def instructions() -> str | None:
    """The instruction set that the kernel uses.

    It is `"amx"`, `"avx512"` or `"avx2"`, on 64-bit ARM `"bfmmla"` or `"neon"`, elsewhere
    `"portable"`; None without the kernel. AMX is for calls in half precision, and in float32 where
    `torch.set_float32_matmul_precision` allows less; BFMMLA for bfloat16; others use AVX-512 and
    NEON beside them. As for torch's own kernels, the environment variable `ATEN_CPU_CAPABILITY`
    (`default`, `avx2`, `avx512`, `neon`) names a lower one.
    """
    return None if MISSING else torch.ops.relpos.native_instructions()
