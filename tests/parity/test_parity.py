"""relpos agrees with everybody else's implementation, forward and in every gradient."""

from __future__ import annotations

import pytest

from relpos import positions
from tests.parity.comparison import Comparison, compare
from tests.parity.oracles import COMPARISONS

CASES = [
    pytest.param(comparison, case, id=f"{comparison.name}-{number}")
    for comparison in COMPARISONS
    for number, case in enumerate(comparison.cases)
]
WRONG = [
    pytest.param(comparison, wrong, id=f"{comparison.name}-{wrong}")
    for comparison in COMPARISONS
    for wrong in comparison.wrong
]


@pytest.mark.parametrize(("comparison", "case"), CASES)
def test_outputs_and_gradients_agree(comparison: Comparison, case: dict):
    difference = compare(comparison.run(**case))
    bound = comparison.bound(difference.summands)
    assert difference.forward <= bound
    assert difference.gradients <= bound


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda comparison: comparison.name)
def test_positions_take_part(comparison: Comparison):
    """Their tables move the output, so that agreement says something about them."""
    difference = compare(comparison.run(**comparison.cases[-1]))
    assert difference.tables > 1e-3


@pytest.mark.parametrize(("comparison", "wrong"), WRONG)
def test_another_window_softcap_or_position_is_seen(comparison: Comparison, wrong: dict):
    """One token more or less is far beyond rounding, in outputs and in gradients."""
    difference = compare(comparison.run(**{**comparison.cases[-1], **wrong}))
    assert difference.forward > 1e-3
    assert difference.gradients > 1e-3


def test_every_scheme_is_compared():
    """A new one is compared too, or named here."""
    bases_and_helpers = {"BiasPosition", "Position", "DebertaEmbedding", "resize_rows"}
    added_to_the_input = {"LearnedAbsolute", "Sinusoidal"}
    schemes = set(positions.__all__) - bases_and_helpers - added_to_the_input
    namesakes = {"AbsPosEmb1D", "RelPosEmb1D", "RelPosEmb2D"}  # of `relpos.adapters`
    assert {comparison.scheme for comparison in COMPARISONS} == schemes | namesakes
