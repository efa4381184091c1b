"""Memory grows with the length and not with its square."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
from pathlib import Path
import torch
from relpos import OffsetTable, Terms, attention

def resident(name):  # MiB; getrusage would know the largest set of the parent process too
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name + ":"))

def run(length):
    x = torch.randn(1, 2, length, 16, requires_grad=True)
    wide = torch.randn(1, 2 * length - 1, 16, requires_grad=True)
    narrow = torch.randn(1, 129, 16, requires_grad=True)
    terms = Terms(OffsetTable(wide, 1 - length), values=OffsetTable(narrow, -64))
    seen = torch.ones(1, 1, 1, length, dtype=torch.bool)
    attention(x, x, x, terms, mask=seen, dropout=DROPOUT, backend="tiled").sum().backward()

run(64)
before = resident("VmRSS")
run(6144)
print(json.dumps(resident("VmHWM") - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_forward_and_backward_stay_far_below_one_score_matrix(dropout: float):
    """Two heads of 6144 x 6144 float32 scores would be 288 MiB."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("DROPOUT", str(dropout))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout) < 100
