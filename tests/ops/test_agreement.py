"""The suite's comparisons catch what they are for: scales, NaN, dtypes, shapes."""

from __future__ import annotations

import pytest
import torch

from tests.ops.agreement import assert_agrees, assert_within_budget, cast
from tests.ops.backends import DTYPES, every_backend, every_blockwise
from tests.ops.cases import CASES


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_agreement_is_rounding_and_no_more(dtype: torch.dtype):
    eps = torch.finfo(dtype).eps
    x = torch.tensor([0.0, 8.0, -torch.inf], dtype=dtype)
    assert_agrees(x + 4000 * eps, x)
    assert_agrees({"x": x}, {"x": x.double()})
    for wrong in (x + 5000 * eps, x * torch.nan, x.abs(), x[:2], x.bfloat16()):
        with pytest.raises(AssertionError):
            assert_agrees(wrong, x)
    for wrong in ({"x": x, "y": x}, {"y": x}):
        with pytest.raises(AssertionError):
            assert_agrees(wrong, {"x": x})
    with pytest.raises(AssertionError):
        assert_agrees((x,), (x, x))


@every_backend
def test_agreement_catches_a_scale_that_is_a_thousandth_off(backend: str):
    case = CASES["keys"]
    named = case.inputs(dtype=DTYPES[backend])
    with pytest.raises(AssertionError, match="not close"):
        assert_agrees(case.run(named, backend, scale=1.001 * case.width**-0.5), case.define(named))


@every_blockwise
def test_the_budget_catches_a_scale_that_is_two_percent_off(backend: str):
    """TRAPS 20: in float32 such a kernel must not pass."""
    case = CASES["keys"]
    named = case.inputs(dtype=torch.float32)
    exact = case.run(cast(named, torch.float64), "reference")[0]
    reference = case.run(named, "reference")[0]
    wrong = case.run(named, backend, scale=1.02 * case.width**-0.5)[0]
    with pytest.raises(AssertionError, match="over the budget"):
        assert_within_budget(wrong, reference, exact)


def test_the_budget_catches_a_wrong_dtype_and_a_stray_nan():
    x = torch.ones(3)
    with pytest.raises(AssertionError):
        assert_within_budget(x.double(), x, x.double())
    with pytest.raises(AssertionError):
        assert_within_budget(x * torch.nan, x, x.double())
