"""Each backend's error against float64 stays within twice the reference's, in every dtype."""

from __future__ import annotations

import pytest
import torch

from relpos import attention

from .cases import CASES, assert_within_budget, cast
from .grid_cases import GRID_CASES

NAMES = [
    "keys", "per head", "all offsets, causal", "several row blocks", "grouped, per head",
    "q_rel", "padding", "additive", "zero beyond", "queries", "queries, grouped, causal",
    "documents and padding",
]  # fmt: skip
GRID_NAMES = [
    "prefix",
    "pooled, between rows",
    "space, prefix, joint",
    "grouped",
    "q_rel, per head",
]
BOTH = {name: CASES[name] for name in NAMES} | {f"grid, {n}": GRID_CASES[n] for n in GRID_NAMES}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_output_is_within_budget(name: str, dtype: torch.dtype):
    case = BOTH[name]
    named = cast(case.inputs(), dtype)
    exact = case.run(cast(named, torch.float64), "reference")
    reference, actual = case.run(named, "reference"), case.run(named, "tiled")
    assert actual[0].dtype == dtype
    for a, r, e in zip(actual, reference, exact, strict=True):
        assert_within_budget(a, r, e)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_gradients_are_within_budget(name: str, dtype: torch.dtype):
    case = BOTH[name]
    named = cast(case.inputs(), dtype)
    exact = case.gradients(cast(named, torch.float64), "reference")
    reference, actual = case.gradients(named, "reference"), case.gradients(named, "tiled")
    for key in exact:
        assert_within_budget(actual[key], reference[key], exact[key])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["per head", "grid, prefix", "grid, space, prefix, joint"])
def test_half_precision_is_rounded_once(name: str, dtype: torch.dtype):
    case = BOTH[name]
    named = cast(case.inputs(), dtype)
    working = case.run(cast(named, torch.float32), "tiled")[0]
    assert torch.equal(case.run(named, "tiled")[0], working.to(dtype))


def test_a_table_summed_over_many_pairs_keeps_its_precision():
    """TRAPS 15: sums over thousands of pairs are taken in float32, whatever the dtype."""
    from dataclasses import replace

    case = replace(CASES["per head"], batch=3, queries=400, keys=400, window=(4, 4))
    named = cast(case.inputs(), torch.bfloat16)
    exact = case.gradients(cast(named, torch.float64), "reference")
    actual = case.gradients(named, "tiled")
    for name in ("keys", "bias", "values"):
        error = (actual[name].double() - exact[name]).abs().max() / exact[name].abs().max()
        assert error < 2 * torch.finfo(torch.bfloat16).eps, name


def test_the_budget_catches_a_scale_that_is_two_percent_off():
    """TRAPS 20: in float32 such a kernel must not pass."""
    case = CASES["keys"]
    named = cast(case.inputs(), torch.float32)
    exact = case.run(cast(named, torch.float64), "reference")[0]
    reference = case.run(named, "reference")[0]
    wrong = case.run(named, "tiled", scale=1.02 * case.width**-0.5)[0]
    with pytest.raises(AssertionError, match="over the budget"):
        assert_within_budget(wrong, reference, exact)


def test_the_budget_catches_a_wrong_dtype_and_a_stray_nan():
    x = torch.ones(3)
    with pytest.raises(AssertionError):
        assert_within_budget(x.double(), x, x.double())
    with pytest.raises(AssertionError):
        assert_within_budget(x * torch.nan, x, x.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("case", [CASES["per head"], GRID_CASES["joint beside tables"]])
def test_autocast_rounds_the_inputs_and_no_more(case, backend: str, dtype: torch.dtype):
    named = cast(case.inputs(), torch.float32)
    rounded = cast(named, dtype)
    named = {name: tensor.requires_grad_() for name, tensor in named.items()}
    with torch.autocast("cpu", dtype):
        output, lse = case.run(named, backend)
    plain, plain_lse = case.run(rounded, backend)
    assert output.dtype == dtype
    assert torch.equal(output, plain)
    assert torch.equal(lse, plain_lse)
    output.float().sum().backward()
    assert all(tensor.grad.dtype == torch.float32 for tensor in named.values())  # type: ignore[union-attr]


def test_autocast_leaves_float64_alone():
    case = CASES["per head"]
    named = case.inputs()
    with torch.autocast("cpu", torch.bfloat16):
        output = case.run(named, "tiled")[0]
    assert torch.equal(output, case.run(named, "tiled")[0])


@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_memory_layout_does_not_matter(backend: str):
    case = CASES["grouped"]
    named = case.inputs()
    expected = case.run(named, backend)[0]
    apart = {
        name: torch.stack([x, x], -1).select(-1, 0) if x.ndim == 4 else x.mT.contiguous().mT
        for name, x in named.items()
    }
    swapped = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in named.items()
               if x.ndim == 4}  # fmt: skip
    for other in (apart, swapped):
        torch.testing.assert_close(case.run(named | other, backend)[0], expected)
        torch.testing.assert_close(
            case.gradients(named | other, backend), case.gradients(named, backend)
        )


def test_agrees_with_torch_where_there_are_no_terms():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 65, 8) for _ in range(3))
    torch.testing.assert_close(
        attention(q, k, v, causal=True),
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    )
