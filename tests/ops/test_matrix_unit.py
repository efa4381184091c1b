"""AMX in a process: permission, threads, forks, what it leaves behind; its numbers at the edges.

Its products are judged by `tests/native`, on every machine, and by the tests of half precision.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from relpos import OffsetTable, Terms, attention
from relpos.ops.native.library import instructions

# What it takes: a dtype, and torch's setting of float32 products.
TAKEN = {
    "bfloat16": (torch.bfloat16, "highest"),
    "float16": (torch.float16, "highest"),
    "float32, split": (torch.float32, "high"),
}


@contextmanager
def float32_products(precision: str):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture(params=TAKEN)
def dtype(request: pytest.FixtureRequest):
    """Of a call on the matrix unit, where the machine has one."""
    taken, precision = TAKEN[request.param]
    with float32_products(precision):
        yield taken


needs_amx = pytest.mark.skipif(instructions() != "amx", reason="this processor has no AMX")

# Each script prints the instructions that it ended up with.
CALL = """
import torch
from relpos import attention
from relpos.ops.native.library import instructions

def call():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 70, 16).bfloat16()
    found = attention(q, k, v, backend="native").double()
    wanted = attention(q.double(), k.double(), v.double(), backend="reference")
    assert (found - wanted).abs().max() < 0.03
"""
OLDER_THREAD = (
    """
import threading
begin = threading.Event()
errors = []
def wait():
    begin.wait()
    try:
        call()
    except BaseException as error:
        errors.append(error)
thread = threading.Thread(target=wait)
thread.start()
"""
    + CALL
    + """
call()
begin.set()
thread.join()
assert not errors, errors
print(instructions())
"""
)
FORK = (
    CALL
    + """
import os
torch.set_num_threads(1)
call()
child = os.fork()
if child == 0:
    call()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
call()
print(instructions())
"""
)
# A thread whose signals have 4 KiB of stack cannot be given the registers.
SMALL_STACK = (
    """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
stack = Stack(ctypes.cast(memory, ctypes.c_void_p), 0, 4096)
assert ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(stack), None) == 0
"""
    + CALL
    + """
call()
print(instructions())
"""
)


@needs_amx
@pytest.mark.parametrize(
    ("script", "wanted"),
    [(OLDER_THREAD, "amx"), (FORK, "amx"), (SMALL_STACK, "avx512")],
    ids=["a thread older than the permission", "a forked process", "a refused permission"],
)
def test_a_process_computes_with_what_it_may_use(script: str, wanted: str):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [wanted]


@needs_amx
def test_subnormal_numbers_are_numbers_again_afterwards(dtype: torch.dtype):
    q, k, v = torch.randn(3, 2, 4, 256, 64).to(dtype).requires_grad_()
    many = torch.full((1 << 20,), 1e-40)  # enough for all of torch's threads
    attention(q, k, v, backend="native").sum().backward()
    assert (many * 0.5 > 0).all()


@needs_amx
def test_the_environment_names_lower_instructions():
    done = subprocess.run(
        [sys.executable, "-c", f"{CALL}\ncall()\nprint(instructions())"],
        env={"ATEN_CPU_CAPABILITY": "avx2", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["avx2"], done.stderr[-2000:]


@needs_amx
def test_the_environment_names_amx_with_all_its_kernels():
    script = """
import torch
from relpos import attention

torch.manual_seed(0)
for dtype in torch.bfloat16, torch.float16:
    q, k, v = torch.randn(3, 1, 2, 70, 16).to(dtype)
    print(attention(q, k, v, backend="native").double().sum().item())
"""

    def printed(**environment: str) -> str:
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=True
        ).stdout

    usual = printed()
    assert printed(ATEN_CPU_CAPABILITY="amx") == usual
    assert printed(ATEN_CPU_CAPABILITY="avx512") != usual


@pytest.mark.parametrize("low", [-1e4, -1e9, -1e10, -1e30, -3e38])
@pytest.mark.parametrize("width", [32, 64])
def test_masks_of_low_numbers_hide_keys(dtype: torch.dtype, width: int, low: float):
    """Left padding of more than a tile, and a row of which nothing is left."""
    q, k, v = torch.randn(3, 1, 2, 600, width).to(dtype)
    mask = torch.zeros(1, 1, 600, 600)
    mask[..., :300] = low
    mask[:, :, 7] = low
    found = attention(q, k, v, mask=mask, backend="native")
    with float32_products("highest"):
        wanted = attention(q.float(), k.float(), v.float(), mask=mask, backend="native")
    assert (found - wanted).abs().max() < 0.03


@pytest.mark.parametrize("width", [32, 64])
def test_biases_of_low_numbers_hide_keys(dtype: torch.dtype, width: int):
    q, k, v = torch.randn(3, 1, 2, 300, width).to(dtype)
    rows = torch.full((2, 599), torch.finfo(dtype).min)
    rows[:, 300:] = 0
    tables = [Terms(bias=OffsetTable(rows.to(x), -299)) for x in (dtype, torch.float)]
    found = attention(q, k, v, tables[0], backend="native")
    with float32_products("highest"):
        wanted = attention(q.float(), k.float(), v.float(), tables[1], backend="native")
    assert (found - wanted).abs().max() < 0.03


@pytest.mark.parametrize("slope", [-0.5, -0.02, 0.02, 0.5])
def test_scores_may_grow_and_shrink_from_tile_to_tile(dtype: torch.dtype, slope: float):
    """A row's largest score is that of its first tile until others are much larger."""
    q, k, v = torch.randn(3, 1, 2, 1100, 32).to(dtype)
    rows = slope * torch.arange(2 * 1100 - 1).expand(2, -1)

    def results(q, k, v, dtype):
        leaves = [x.requires_grad_() for x in (q, k, v)]
        terms = Terms(bias=OffsetTable(rows.to(dtype), -1099))
        output, lse = attention(*leaves, terms, backend="native", return_lse=True)
        return output, lse, *torch.autograd.grad(output.sum(), leaves)

    found = results(q, k, v, dtype)
    with float32_products("highest"):
        # The same biases, which half precision has rounded.
        rows = rows.to(dtype).float()
        wanted = results(q.float(), k.float(), v.float(), torch.float32)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() < 0.01 * other.abs().max()


def test_a_key_that_is_nan_shows_in_later_tiles(dtype: torch.dtype):
    q, k, v = torch.randn(3, 1, 2, 700, 32).to(dtype)
    k[:, :, 600] = torch.nan
    assert attention(q, k, v, backend="native").isnan().all()
    seen = attention(q, k, v, causal=True, backend="native").isnan().any(-1)
    assert torch.equal(seen, (torch.arange(700) >= 600).expand(1, 2, -1))


@pytest.mark.parametrize("queries", [64, 5])
@pytest.mark.parametrize("which", ["k", "v"])
def test_keys_that_no_query_sees_are_never_read(dtype: torch.dtype, which: str, queries: int):
    """Neither those before the first key that is seen, nor those after the last, in one unit."""
    q, k, v = (torch.randn(1, 2, n, 32).to(dtype) for n in (queries, 64, 64))
    rows = [torch.randn(1, 21, 32).to(dtype) for _ in range(3)]
    bias = torch.full((1, 21), 100.0).to(dtype)
    ranges = torch.tensor([10, 45]).expand(1, queries, 2)

    def results(k, v):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, *rows, bias)]
        keys, queries_, values, biases = (OffsetTable(x, -10) for x in leaves[3:])
        terms = Terms(keys=keys, queries=queries_, values=values, bias=biases)
        out = attention(*leaves[:3], terms, key_ranges=ranges, backend="native")
        return out, *torch.autograd.grad(out.sum(), leaves)

    poisoned = {"k": k.clone(), "v": v.clone()}
    poisoned[which][:, :, :10] = torch.nan
    poisoned[which][:, :, 45:] = torch.inf
    for found, wanted in zip(results(**poisoned), results(k, v), strict=True):
        assert torch.equal(found, wanted)


@needs_amx
@pytest.mark.parametrize("keys", [17, 200])
def test_gradients_that_cancel_in_half_precision(keys: int):
    """A bias that all pairs share has none; what is left of it is rounding."""
    torch.manual_seed(0)
    shapes = (1, 2, 16, 64), (1, 2, keys, 64), (1, 2, keys, 64), (1, 1)
    leaves = [(3 * torch.randn(shape)).half().requires_grad_() for shape in shapes]
    grad = torch.randn(1, 2, 16, 64).half()

    def gradient(backend: str, rows: list[torch.Tensor]) -> torch.Tensor:
        terms = Terms(bias=OffsetTable(rows[3], 0))
        out = attention(*rows[:3], terms, backend=backend)
        return torch.autograd.grad(out, rows[3], grad.to(out.dtype))[0]

    # What the sum of all |ds| rounds to; it is more than that of the output's rounding.
    assert gradient("native", leaves).abs().max() < 1e-4
    assert (
        gradient("reference", [x.detach().double().requires_grad_() for x in leaves]).abs() < 1e-9
    )


@pytest.mark.parametrize("hidden", [False, True])
def test_float32_up_to_the_largest_number(hidden: bool):
    largest = torch.finfo(torch.float32).max
    q, k, v = torch.ones(3, 1, 1, 64, 32)
    v[..., 3, :] = largest
    mask = torch.ones(1, 1, 64, 64, dtype=torch.bool)
    mask[..., 3] = not hidden
    with float32_products("high"):
        found = attention(q, k, v, mask=mask, backend="native")
    torch.testing.assert_close(found[..., :1], q[..., :1] if hidden else q[..., :1] * largest / 64)


def shaw(dtype: torch.dtype, backend: str = "native", transform=lambda call: call):
    """Output and gradients of a call with tables, of the same numbers in every dtype."""
    torch.manual_seed(0)
    shapes = [(1, 2, 300, 64)] * 3 + [(2, 33, 64)] * 3
    leaves = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]

    def call(q, k, v, *rows):
        keys, queries, values = (OffsetTable(x, -16) for x in rows)
        terms = Terms(keys=keys, queries=queries, values=values)
        return attention(q, k, v, terms, scale=0.05, backend=backend)

    output = transform(call)(*leaves)
    return [output, *torch.autograd.grad(output, leaves, torch.randn(output.shape).to(dtype))]


@needs_amx
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_float32_is_split_where_torch_may_do_as_much(precision: str):
    exact = shaw(torch.float64, "reference")
    whole = shaw(torch.float32)
    with float32_products(precision):
        split = shaw(torch.float32)
    for found, other, wanted in zip(split, whole, exact, strict=True):
        largest = wanted.abs().max()
        assert (other - wanted).abs().max() < 3e-6 * largest
        # 2^-16 of each factor, three factors one after another.
        assert (found - wanted).abs().max() < 3 * 2**-16 * largest
        assert not torch.equal(found, other)


def test_float32_stays_whole_by_default():
    assert torch.get_float32_matmul_precision() == "highest"
    with float32_products("high"):
        shaw(torch.float32)
    for found, wanted in zip(shaw(torch.float32), shaw(torch.float64, "reference"), strict=True):
        assert (found - wanted).abs().max() < 3e-6 * wanted.abs().max()


@pytest.mark.no_typecheck
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_a_compiled_call_follows_the_setting_of_its_compilation(precision: str):
    torch.compiler.reset()
    with float32_products(precision):
        eager = shaw(torch.float32)
        compiled = shaw(
            torch.float32,
            transform=lambda call: torch.compile(call, fullgraph=True, backend="aot_eager"),
        )
    assert all(torch.equal(x, y) for x, y in zip(eager, compiled, strict=True))
