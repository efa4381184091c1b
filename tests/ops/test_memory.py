"""Memory grows with the length and not with its square."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.ops.backends import every_cpu_blockwise, native_alone

pytestmark = pytest.mark.no_typecheck

SCRIPT = """
import json
from pathlib import Path
import torch
from relpos import GridTerms, OffsetTable, Terms
from relpos import attention, chunk_ranges, global_local_attention
from relpos.adapters import neighborhood_attention

def resident(name):  # MiB; getrusage would know the largest set of the parent process too
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name + ":"))

def run(length):
    x = torch.randn(1, 2, length, 16, requires_grad=True)
    wide = torch.randn(1, 2 * length - 1, 16, requires_grad=True)
    narrow = torch.randn(1, 129, 16, requires_grad=True)
    terms = Terms(OffsetTable(wide, 1 - length), values=OffsetTable(narrow, -64))
    seen = torch.ones(1, 1, 1, length, dtype=torch.bool)
    attention(x, x, x, terms, mask=seen, dropout=DROPOUT, backend="BACKEND").sum().backward()

def run_queries(length):
    x = torch.randn(1, 2, length, 16, requires_grad=True)
    wide = torch.randn(1, 2 * length - 1, 16, requires_grad=True)
    documents = torch.arange(length)[None] // (length // 2)
    terms = Terms(queries=OffsetTable(wide, 1 - length))
    attention(x, x, x, terms, documents=documents, backend="BACKEND").sum().backward()

def run_local(length):
    x = torch.randn(1, 2, length, 16, requires_grad=True)
    rows = torch.randn(1, 129, 16, requires_grad=True)
    terms = Terms(OffsetTable(rows, -64), OffsetTable(rows, -64), values=OffsetTable(rows, -64))
    chunks = chunk_ranges(length, 1024, left_chunks=2)
    attention(
        x, x, x, terms, window=(600, 600), key_ranges=chunks, softcap=20.0, backend="BACKEND"
    ).sum().backward()

def run_grid(length):
    height = int((length / 1.5) ** 0.5)
    width = length // height
    x = torch.randn(1, 2, height * width + 1, 16, requires_grad=True)
    rows, columns = (torch.randn(1, 2 * n - 1, 16, requires_grad=True) for n in (height, width))
    joint = torch.randn(2, 2 * height - 1, 2 * width - 1, requires_grad=True)
    tables = OffsetTable(rows, 1 - height), OffsetTable(columns, 1 - width)
    axes = tuple(Terms(keys=table, queries=table, values=table) for table in tables)
    terms = GridTerms((height, width), axes, joint, prefix=1)
    attention(x, x, x, terms, backend="BACKEND").sum().backward()

def run_grid_of_many_heads(length):
    torch.set_num_threads(1)
    side = int(length**0.5)
    x = torch.randn(1, 8, side * side, 16, requires_grad=True)
    rows = torch.randn(8, 2 * side - 1, 16, requires_grad=True)
    axes = (Terms(queries=OffsetTable(rows, 1 - side)),) * 2
    attention(x, x, x, GridTerms((side, side), axes), backend="BACKEND").sum().backward()

def run_thin_grid(length):
    width = length // 4
    x = torch.randn(1, 2, length, 16, requires_grad=True)
    rows = torch.randn(1, 9, 16, requires_grad=True)
    axes = Terms(), Terms(keys=OffsetTable(rows, -4), values=OffsetTable(rows, -4))
    attention(x, x, x, GridTerms((4, width), axes), backend="BACKEND").sum().backward()

def run_neighborhoods(length):
    x = torch.randn(1, 64, length // 64, 2, 16, requires_grad=True)
    rpb = torch.randn(2, 13, 13, requires_grad=True)
    neighborhood_attention(x, x, x, 7, dilation=2, rpb=rpb, backend="BACKEND").sum().backward()

def run_global(length):
    x = torch.randn(1, 2, length, 16, requires_grad=True)
    rows = torch.randn(1, 129, 16, requires_grad=True)
    terms = Terms(OffsetTable(rows, -64), values=OffsetTable(rows, -64))
    tokens = [0, 1, 2, length // 2, length - 1]
    global_local_attention(
        x, x, x, terms, window=(32, 32), global_tokens=tokens, backend="BACKEND"
    ).sum().backward()

def run_second(length):
    x = torch.randn(1, 2, length, 16, requires_grad=True)
    rows = torch.randn(1, 129, 16, requires_grad=True)
    terms = Terms(OffsetTable(rows, -64), values=OffsetTable(rows, -64))
    total = attention(x, x, x, terms, causal=True, backend="BACKEND").square().sum()
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    first.square().sum().backward()

def run_second_on_a_map(length):
    width = length // 16
    x = torch.randn(1, 4, length, 16, requires_grad=True)
    k = torch.randn(1, 1, length, 16)
    rows = torch.randn(1, 2 * width - 1, 16, requires_grad=True)
    axes = Terms(), Terms(keys=OffsetTable(rows, 1 - width), values=OffsetTable(rows, 1 - width))
    terms = GridTerms((16, width), axes)
    total = attention(x, k, k, terms, backend="BACKEND").square().sum()
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    first.square().sum().backward()

RUN(64)
before = resident("VmRSS")
RUN(LENGTH)
print(json.dumps(resident("VmHWM") - before))
"""


# Two heads of 6144 x 6144 float32 scores are 288 MiB. On a thin grid, 4 x 1536, a vector of 16
# numbers for each pair of coordinates along an axis would be 144 MiB, for each of two tables and
# again for their gradients; what stays is a number for each token and coordinate, 72 MiB, a few
# times. `native` keeps not even that.
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("run", "dropout", "most"),
    [
        ("run", 0.0, 100),
        ("run", 0.1, 100),
        ("run_queries", 0.0, 100),
        ("run_local", 0.0, 60),
        ("run_grid", 0.0, 144),
        ("run_thin_grid", 0.0, 500),
        ("run_neighborhoods", 0.0, 60),
        ("run_global", 0.0, 100),
        ("run_second", 0.0, 200),
    ],
)
@every_cpu_blockwise
@pytest.mark.costly(2)
def test_forward_and_backward_stay_far_below_the_score_matrices(
    backend: str, run: str, dropout: float, most: int
):
    if (run, backend) == ("run_thin_grid", "native"):
        most = 72
    assert growth(backend, run, dropout) < most


# One head's scores of 3072 x 3072 pairs are 36 MiB, of which about twenty are held at a time.
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@every_cpu_blockwise
@pytest.mark.costly(1)
def test_second_derivatives_on_a_map_hold_one_head_at_a_time(backend: str):
    assert growth(backend, "run_second_on_a_map", length=3072) < 1000


# A number for each key, coordinate of a query and head is 29 MiB, of one head 3.6; and the same for
# the sums of their gradients. Inputs, output and gradients are 3 MiB each.
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@native_alone
def test_native_keeps_a_grids_logits_of_queries_for_one_head_at_a_time(backend: str):
    assert growth(backend, "run_grid_of_many_heads") < 48


def growth(backend: str, run: str, dropout: float = 0.0, length: int = 6144) -> float:
    """MiB that one run of the script takes beyond what it had before."""
    script = SCRIPT.replace("RUN", run).replace("DROPOUT", str(dropout))
    script = script.replace("LENGTH", str(length))
    script = script.replace("BACKEND", backend)
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)
