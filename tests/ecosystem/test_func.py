"""`torch.func` and derivatives of higher order: computed by the reference, or refused in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

from relpos import BackendError, OffsetTable, Terms, attention
from relpos.ops import dispatch
from tests.ecosystem.schemes import SUBJECTS, inputs, made
from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, every_cpu_blockwise

D = torch.float64
ROWS = torch.randn(2, 5, 3, dtype=D, generator=torch.Generator().manual_seed(2))
# The third query sees no key.
RANGES = torch.tensor([[0, 2], [1, 4], [3, 3], [0, 4]])[None]
LOCAL = {
    "all keys": {},
    "window": {"window": (2, 0)},
    "key_ranges": {"key_ranges": RANGES},
    "softcap": {"softcap": 1.5},
}
each_local = pytest.mark.parametrize("local", LOCAL.values(), ids=list(LOCAL))
# As for more scores than these tests have, for which "auto" would take the reference.
without_short_calls = pytest.mark.usefixtures("no_few_scores")
# torch's own, where forward-mode derivatives begin.
forward_mode = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def tokens(batch: int = 1, dtype: torch.dtype = D) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 2, 4, 3, dtype=D, generator=generator).to(dtype)


def attended(q: Tensor, backend: str = "auto", **local: Any) -> Tensor:
    rows = ROWS.to(q.dtype)
    terms = Terms(keys=OffsetTable(rows, -2), values=OffsetTable(rows, -3))
    return attention(q, 2 * q, q, terms, causal=True, backend=backend, **local)


def loss(q: Tensor, backend: str = "auto", **local: Any) -> Tensor:
    return attended(q, backend, **local).square().sum()


@pytest.mark.parametrize("name", SUBJECTS)
def test_gradients_of_a_functional_call_equal_those_of_backward(name: str):
    module, given = made(name, D), inputs(name, 5, D)
    parameters = dict(module.named_parameters())

    def run(parameters: dict[str, Tensor], *given: Tensor) -> Tensor:
        return functional_call(module, parameters, given).square().sum()

    run(parameters, *given).backward()
    want = {label: x.grad for label, x in parameters.items() if x.grad is not None}
    found = grad(run)(parameters, *given)
    assert_close({label: found[label] for label in want}, want)


@pytest.mark.parametrize("name", SUBJECTS)
def test_gradients_of_each_sample_add_up(name: str):
    module, given = made(name, D), inputs(name, 5, D)
    parameters = dict(module.named_parameters())

    def run(parameters: dict[str, Tensor], *given: Tensor) -> Tensor:
        return functional_call(module, parameters, given).square().sum()

    each = vmap(grad(run), in_dims=(None, *(0 for _ in given)))(
        parameters, *(x.unsqueeze(1) for x in given)
    )
    want = grad(run)(parameters, *given)
    assert_close({label: x.sum(0) for label, x in each.items()}, want)


@pytest.mark.parametrize("transform", [vmap, jacrev, jacfwd, hessian], ids=lambda f: f.__name__)
@each_local
@forward_mode
def test_transforms_of_auto_are_those_of_the_reference(transform: Callable, local: dict):
    q = tokens(2)
    function = loss if transform is hessian else attended
    # A batch of its own within the function, as `vmap` takes one away.
    found = transform(lambda x: function(x.view(-1, 2, 4, 3), **local))(q)
    assert_close(found, transform(lambda x: function(x.view(-1, 2, 4, 3), "reference", **local))(q))


def test_each_sample_may_have_ranges_of_its_own():
    q, ranges = tokens(3), torch.stack([RANGES[0], RANGES[0].flip(0), 4 - RANGES[0].flip(1)])
    found = vmap(lambda q, ranges: attended(q[None], key_ranges=ranges[None])[0])(q, ranges)
    assert_close(found, attended(q, key_ranges=ranges))


@each_local
@forward_mode
def test_jacobians_are_right(local: dict):
    q, step = tokens(), torch.randn(1, 2, 4, 3, dtype=D)

    def run(q: Tensor) -> Tensor:
        return attended(q, **local)

    slope = (run(q + 1e-6 * step) - run(q - 1e-6 * step)) / 2e-6
    near = {"rtol": 1e-6, "atol": 1e-8}
    assert_close(jvp(run, (q,), (step,))[1], slope, **near)
    for transform in (jacrev, jacfwd):
        assert_close((transform(run)(q) * step).sum((-4, -3, -2, -1)), slope, **near)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("name", ["grad", "vmap of grad", "vmap", "jacrev", "jvp", "hessian"])
@forward_mode
@pytest.mark.costly(1)
def test_transforms_inside_compile_are_right(name: str):
    torch._dynamo.reset()
    run = {
        "grad": grad(loss),
        "vmap of grad": vmap(grad(lambda x: loss(x[None]))),
        "vmap": vmap(lambda x: attended(x[None])),
        "jacrev": jacrev(attended),
        "jvp": lambda q: jvp(attended, (q,), (q,)),
        "hessian": hessian(loss),
    }[name]
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_close(compiled(tokens()), run(tokens()))


@pytest.mark.no_typecheck
def test_transforms_of_a_compiled_function_are_right():
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager")
    assert_close(grad(compiled)(tokens()), grad(loss)(tokens()))


@pytest.mark.parametrize("transform", [grad, vmap], ids=lambda f: f.__name__)
@each_local
@every_cpu_blockwise
def test_transforms_of_a_named_backend_are_refused(backend: str, transform: Callable, local: dict):
    message = rf"{backend}: not supported by this backend: torch.func transforms"
    with pytest.raises(BackendError, match=message):
        transform(lambda x: loss(x.view(-1, 2, 4, 3), backend, **local))(tokens(1, DTYPES[backend]))


@pytest.fixture
def no_few_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "FEW_SCORES", 0)


@each_local
@every_cpu_blockwise
@without_short_calls
def test_second_derivatives_of_auto_are_those_of_func(backend: str, local: dict):
    """`auto` takes this backend for this dtype."""
    q = tokens(1, DTYPES[backend]).requires_grad_()
    (first,) = torch.autograd.grad(loss(q, **local), q, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), q)
    want = hessian(lambda q: loss(q, **local))(q.detach())
    assert_agrees(second, want.sum((0, 1, 2, 3)))
    whole = torch.autograd.functional.hessian(lambda q: loss(q, **local), q.detach())
    assert_agrees(whole, want)


@pytest.mark.parametrize("way", ["is_grads_batched", "vectorize", "vmap"])
@every_cpu_blockwise
@without_short_calls
def test_gradients_of_several_outputs_at_once_are_refused_with_the_way_out(backend: str, way: str):
    """`auto` takes this backend for this dtype."""
    q = tokens(1, DTYPES[backend]).requires_grad_()
    output = attended(q)
    directions = torch.ones(2, *output.shape, dtype=q.dtype)
    ways: dict[str, Callable] = {
        "is_grads_batched": lambda: torch.autograd.grad(
            output, q, directions, is_grads_batched=True
        ),
        "vectorize": lambda: torch.autograd.functional.jacobian(attended, q, vectorize=True),
        "vmap": lambda: vmap(lambda x: torch.autograd.grad(output, q, x))(directions),
    }
    message = rf"{backend}: .* several outputs at once .* use torch.func.jacrev"
    with pytest.raises(BackendError, match=message):
        ways[way]()
