"""relpos agrees with everybody else's implementation, forward and in every gradient."""

from __future__ import annotations

import pytest

from .comparison import Comparison, compare
from .oracles import COMPARISONS

CASES = [
    pytest.param(comparison, case, id=f"{comparison.scheme}-{comparison.implementation}-{number}")
    for comparison in COMPARISONS
    for number, case in enumerate(comparison.cases)
]


@pytest.mark.parametrize(("comparison", "case"), CASES)
def test_outputs_and_gradients_agree(comparison: Comparison, case: dict):
    difference = compare(comparison.run(**case))
    bound = comparison.bound(difference.summands)
    assert difference.forward <= bound
    assert difference.gradients <= bound


@pytest.mark.parametrize(
    "comparison", COMPARISONS, ids=lambda comparison: comparison.implementation
)
def test_positions_take_part(comparison: Comparison):
    """Their tables move the output, so that agreement says something about them."""
    difference = compare(comparison.run(**comparison.cases[-1]))
    assert difference.tables > 1e-3
