"""Without the private symbols of torch that speed the op up: the same numbers and refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.ops.backends import every_cpu_blockwise

pytestmark = pytest.mark.no_typecheck

HIDE = """
import sys, warnings
import torch, torch.func
import torch._functorch.vmap
import torch._C._functorch as functorch

warnings.simplefilter("ignore")
hidden = ["CInterpreter", "is_legacy_batchedtensor", "peek_interpreter_stack"]
kept = {name: functorch.__dict__.pop(name) for name in hidden}
modes = torch._C.__dict__.pop("_len_torch_dispatch_stack")
context = torch._guards.__dict__.pop("TracingContext")
find = torch._ops._OpNamespace.__getattr__

def without_softmax(namespace, name):
    if name == "_softmax_backward_data":
        raise AttributeError(name)
    return find(namespace, name)

torch.ops.aten.__dict__.pop("_softmax_backward_data", None)
torch._ops._OpNamespace.__getattr__ = without_softmax
from relpos import BackendError, OffsetTable, Terms, attention
from relpos.ops import compiled_graph, torch_dispatcher, transforms
from relpos.ops.tiled import backward

assert transforms.peek_interpreter_stack is transforms.is_legacy_batchedtensor is None
assert backward._SOFTMAX_BACKWARD is None
assert torch_dispatcher._modes() == 1
assert compiled_graph.TracingContext is None
torch._guards.TracingContext = context
torch._C._len_torch_dispatch_stack = modes
functorch.__dict__.update(kept)  # torch's own transforms need them
torch._ops._OpNamespace.__getattr__ = find

backend = sys.argv[1]
torch.manual_seed(0)
q = torch.randn(2, 2, 5, 4)
rows = torch.randn(2, 3, 4)
terms = Terms(keys=OffsetTable(rows, -1), values=OffsetTable(rows, -2))

def run(q, backend=backend):
    return attention(q, q, q, terms, causal=True, backend=backend)

def refused(function, words):
    try:
        function()
    except BackendError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")
"""

SAME_NUMBERS = """
leaf = q.clone().requires_grad_()
want = torch.autograd.grad(run(leaf, "reference").square().sum(), leaf)
torch.testing.assert_close(torch.autograd.grad(run(leaf).square().sum(), leaf), want)
compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
torch.testing.assert_close(torch.autograd.grad(compiled(leaf).square().sum(), leaf), want)
with torch.inference_mode():
    torch.testing.assert_close(run(q), run(q, "reference"))
"""

TRANSFORMS = """
def one(q, backend="auto"):
    return run(q[None], backend)[0]

torch.testing.assert_close(torch.func.vmap(one)(q), run(q, "reference"))
torch.testing.assert_close(
    torch.func.grad(lambda q: run(q, "auto").sum())(q),
    torch.func.grad(lambda q: run(q, "reference").sum())(q),
)
words = "not supported by this backend: torch.func transforms"
refused(lambda: torch.func.vmap(one, (0, None))(q, backend), words)
refused(lambda: torch.func.grad(lambda q: run(q).sum())(q), words)
"""

SEVERAL_OUTPUTS = """
leaf = q.clone().requires_grad_()
output = run(leaf)
eye = torch.stack([torch.ones_like(output), torch.zeros_like(output)])
refused(
    lambda: torch.autograd.grad(output, leaf, eye, is_grads_batched=True, retain_graph=True),
    "gradients of several outputs at once",
)
refused(
    lambda: torch.func.vmap(
        lambda gradient: torch.autograd.grad(output, leaf, gradient, retain_graph=True)
    )(eye),
    "gradients of several outputs at once",
)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [SAME_NUMBERS, TRANSFORMS, SEVERAL_OUTPUTS], ids=["numbers", "transforms", "batched"]
)
@every_cpu_blockwise
@pytest.mark.costly(1)
def test_without_torchs_private_symbols_all_is_as_before(backend: str, check: str):
    run = subprocess.run(
        [sys.executable, "-c", HIDE + check, backend], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
