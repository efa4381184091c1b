"""Second derivatives: finite differences judge the reference, the reference judges the rest."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from relpos import BackendError, OffsetTable, Terms, attention
from relpos.ops import second_derivatives
from tests.ops.agreement import assert_agrees, assert_within_budget, cast
from tests.ops.backends import DTYPES, every_blockwise
from tests.ops.cases import CASES, Case
from tests.ops.grid_cases import GRID_CASES
from tests.ops.test_gradients import CHECKED

pytestmark = pytest.mark.no_typecheck

ALL_CASES = CASES | {f"grid, {name}": case for name, case in GRID_CASES.items()}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_they_are_the_slopes_of_gradients(name: str, backend: str):
    case = CHECKED[name]
    named = case.inputs()
    leaves = [named[name].requires_grad_() for name in named]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return case.run(dict(zip(named, tensors, strict=True)), backend)

    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.costly(60)
@pytest.mark.parametrize("name", ALL_CASES)
@every_blockwise
def test_they_equal_those_of_the_reference(name: str, backend: str):
    case = ALL_CASES[name]
    exact = case.second_derivatives(case.inputs(), "reference")
    found = case.second_derivatives(case.inputs(dtype=DTYPES[backend]), backend)
    assert_agrees(found, exact)


@pytest.mark.parametrize(
    "name",
    [
        "grouped, per head",
        "additive, hiding",
        "documents, padded queries",
        "queries, several row blocks",
        "ranges and a mask",
        "grid, q_rel, pooled",
        "grid, windows, grouped",
        "grid, documents and a mask",
    ],
)
@pytest.mark.parametrize("scores", [1, 100, 10_000])
@pytest.mark.costly(12)
@every_blockwise
def test_parts_of_a_call_add_up(
    name: str, backend: str, scores: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(second_derivatives, "_MOST_SCORES", scores)
    test_they_equal_those_of_the_reference(name, backend)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("name", "only"),
    [
        *(("additive", only) for only in ("q", "k", "keys", "mask")),
        *(("grid, plane", only) for only in ("q", "k", "v", "queries0", "values1")),
        ("grid, joint beside tables", "joint_bias"),
    ],
)
@every_blockwise
def test_one_input_alone_learns(name: str, only: str, half: bool, backend: str):
    case = ALL_CASES[name]
    given = case.inputs(dtype=torch.bfloat16 if half else DTYPES[backend])

    def second(backend: str, dtype: torch.dtype) -> torch.Tensor:
        named = cast(given, dtype)
        x = named[only].requires_grad_()
        output, _ = case.run(named, backend)
        (gradient,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), x)[0]

    found, exact = second(backend, given["q"].dtype), second("reference", torch.float64)
    if half:
        assert_within_budget(found, second("reference", torch.bfloat16), exact)
    else:
        assert_agrees(found, exact)


@every_blockwise
def test_third_derivatives_follow(backend: str):
    def third(backend: str, dtype: torch.dtype) -> torch.Tensor:
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(1, 2, 9, 4, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
        rows = torch.randn(1, 5, 4, generator=draw, dtype=torch.float64).to(dtype)
        found = attention(x, x, x, Terms(OffsetTable(rows, -2)), backend=backend)
        for _ in range(3):
            (found,) = torch.autograd.grad(found.square().sum(), x, create_graph=True)
        return found.detach()

    found, exact = third(backend, DTYPES[backend]), third("reference", torch.float64)
    size = exact.abs().max()
    assert_agrees(found / size.to(found.dtype), exact / size)


@every_blockwise
def test_half_precision_is_as_near_as_the_reference(backend: str):
    case = CASES["per head"]
    named = [case.inputs(seed, torch.bfloat16) for seed in range(3)]

    def second(backend: str, dtype: torch.dtype) -> torch.Tensor:
        every = [
            case.second_derivatives({n: x.to(dtype) for n, x in each.items()}, backend)
            for each in named
        ]
        return torch.stack([each["keys"] for each in every])

    found, reference = second(backend, torch.bfloat16), second("reference", torch.bfloat16)
    assert_within_budget(found, reference, second("reference", torch.float64))


@every_blockwise
def test_they_go_through_checkpoints(backend: str):
    x = torch.randn(1, 2, 20, 4, dtype=DTYPES[backend], requires_grad=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        return attention(x, x, x, causal=True, backend=backend).square().sum()

    def second(total: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), x)[0]

    assert_agrees(second(checkpoint(run, x, use_reentrant=False)), second(run(x)))


@every_blockwise
def test_gradients_within_autocast_keep_float32(backend: str):
    """As those of first order do."""
    q = torch.randn(1, 2, 20, 8, dtype=DTYPES[backend], requires_grad=True)
    (first,) = torch.autograd.grad(
        attention(q, q, q, backend=backend).square().sum(), q, create_graph=True
    )
    total = first.square().sum()
    (wanted,) = torch.autograd.grad(total, q, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad(total, q)
    assert torch.equal(found, wanted)


@every_blockwise
def test_an_empty_batch_has_none(backend: str):
    case = Case(batch=0, mask="additive")
    found = case.second_derivatives(case.inputs(dtype=DTYPES[backend]), backend)
    assert not any(x.any() for x in found.values())


@every_blockwise
def test_several_at_once_are_refused_in_words(backend: str):
    x = torch.randn(1, 2, 5, 8, dtype=DTYPES[backend], requires_grad=True)
    total = attention(x, x, x, backend=backend).square().sum()
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    directions = torch.eye(80, dtype=x.dtype).view(-1, *x.shape)
    with pytest.raises(BackendError, match=f"{backend}: .* several outputs at once"):
        torch.autograd.grad(first, x, directions, is_grads_batched=True)


@every_blockwise
def test_dropout_is_refused_in_words(backend: str):
    q = torch.randn(1, 1, 5, 4, requires_grad=True)
    output = attention(q, q, q, dropout=0.5, backend=backend)
    (gradient,) = torch.autograd.grad(output.sum(), q, create_graph=True)
    message = f"{backend}: dropout must be 0 for second derivatives, got 0.5"
    with pytest.raises(BackendError, match=message):
        gradient.sum().backward()
