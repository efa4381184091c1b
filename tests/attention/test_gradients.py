"""Gradients: finite differences judge the reference, the reference judges the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from relpos import BackendError, attention

from .cases import CASES, Case, cast
from .grid_cases import GRID_CASES

SMALL = Case(batch=1, heads=2, groups=1, queries=4, keys=6, width=3, value_width=2, table_heads=2)

CHECKED = {
    "bidirectional": SMALL,
    "causal": replace(SMALL, causal=True, beyond="zero", window=(2, 1)),
    "q_rel": replace(SMALL, rel_width=2, table_heads=1, window=(9, 9)),
    "queries": replace(SMALL, terms="keys queries"),
    "mask": replace(SMALL, mask="additive", groups=2),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_gradients_are_the_slopes(name: str, backend: str):
    case = CHECKED[name]
    named = case.inputs()
    names = list(named)
    leaves = [named[name].requires_grad_() for name in names]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return case.run(dict(zip(names, tensors, strict=True)), backend)

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("name", CASES)
def test_tiled_gradients_equal_the_reference(name: str):
    case = CASES[name]
    named = case.inputs()
    torch.testing.assert_close(
        case.gradients(named, "tiled"), case.gradients(named, "reference"), rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("name", ["per head", "q_rel", "additive", "several row blocks, causal"])
def test_each_input_alone_gets_the_same_gradient(name: str):
    """TRAPS 13: only the table, or only the mask, requires grad."""
    case = CASES[name]
    named = case.inputs()
    together = case.gradients(named, "tiled")
    for only, expected in together.items():
        alone = case.gradients(named, "tiled", only=only)
        assert list(alone) == [only]
        assert torch.equal(alone[only], expected), only


def test_gradient_of_the_output_alone_and_of_the_log_sum_exp_alone():
    case = CASES["per head"]
    for part in (0, 1):
        grads = []
        for backend in ("tiled", "reference"):
            named = {name: x.requires_grad_() for name, x in case.inputs().items()}
            case.run(named, backend)[part].square().sum().backward()
            grads.append(named["q"].grad)
        torch.testing.assert_close(*grads)


REPEATED = {
    "line": replace(CASES["several row blocks"], batch=2, window=(200, 10)),
    "grid": replace(GRID_CASES["joint beside tables"], shape=(13, 17), batch=2),
    "documents": replace(CASES["documents, several row blocks"], batch=2),
}


@pytest.mark.parametrize("name", REPEATED)
def test_gradients_are_the_same_bits_each_time(name: str):
    """TRAPS 15."""
    case = REPEATED[name]
    named = cast(case.inputs(), torch.float32)
    first = case.gradients(named, "tiled")
    for _ in range(3):
        again = case.gradients(named, "tiled")
        assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_second_derivative_is_refused_and_not_wrong():
    q = torch.randn(1, 1, 5, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(attention(q, q, q, backend="tiled").sum(), q, create_graph=True)
    with pytest.raises(BackendError, match="second derivatives are not computed blockwise"):
        grad.sum().backward()


def test_the_reference_has_second_derivatives():
    q = torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda q: attention(q, q, q, backend="reference"), [q])
