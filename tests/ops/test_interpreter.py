"""Triton's interpreter without its repetitions computes what it does with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compiled import lines_of_script
from tests.ops.interpreter import KNOWN

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.no_typecheck

BOTH_WAYS = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import pytest
import torch
import triton
from tests.ops.agreement import cast
from tests.ops.cases import CASES
from tests.ops.interpreter import make_quick

named = cast(CASES["values"].inputs(0), torch.float32)
plain = CASES["values"].results(named, "triton")
with pytest.MonkeyPatch.context() as patch:
    make_quick(patch)
    types = triton.language.core.block_type.__init__.__module__
    quick = CASES["values"].results(named, "triton")
print(types, len(quick), all(torch.equal(plain[name], x) for name, x in quick.items()))
"""


def test_no_bit_differs(tmp_path: Path):
    if not triton.__version__.startswith(KNOWN):
        pytest.skip(f"what is spared is known of Triton {KNOWN} alone")
    assert lines_of_script(BOTH_WAYS, tmp_path) == ["tests.ops.interpreter 6 True"]
