"""AMX in a process: permission, threads, forks, and what it leaves behind.

Its products are judged by `tests/native`, on every machine, and by the tests of bfloat16.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from relpos import attention
from relpos.ops.native.library import instructions

pytestmark = pytest.mark.skipif(instructions() != "amx", reason="this processor has no AMX")

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


def test_subnormal_numbers_are_numbers_again_afterwards():
    q, k, v = torch.randn(3, 2, 4, 256, 64).bfloat16().requires_grad_()
    many = torch.full((1 << 20,), 1e-40)  # enough for all of torch's threads
    attention(q, k, v, backend="native").sum().backward()
    assert (many * 0.5 > 0).all()


def test_the_environment_names_lower_instructions():
    done = subprocess.run(
        [sys.executable, "-c", f"{CALL}\ncall()\nprint(instructions())"],
        env={"ATEN_CPU_CAPABILITY": "avx2", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["avx2"], done.stderr[-2000:]
