"""The comparison itself notices what it is there to notice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.parity.comparison import Comparison, Trial, attended, compare

x = torch.linspace(-1, 1, 33, dtype=torch.float64).requires_grad_()
rows = torch.ones(1, dtype=torch.float64, requires_grad=True)


def trial(ours: Tensor, theirs: Tensor) -> Trial:
    return Trial(ours, theirs, {"x": x, "rows": rows}, tables=["rows"])


def comparison(**arguments: float) -> Comparison:
    return Comparison("Shaw", "nobody", "torch", "x", run=trial, **arguments)


def test_equal_outputs_have_no_difference():
    difference = compare(trial(rows * x, rows * x))
    assert difference.forward == difference.gradients == 0
    assert difference.tables > 0.1
    assert difference.summands == 33


def test_a_part_in_a_billion_is_beyond_the_bound():
    difference = compare(trial(rows * x * (1 + 1e-9), rows * x))
    bound = comparison().bound(difference.summands)
    assert difference.forward == pytest.approx(1e-9, rel=1e-3)
    assert difference.forward > bound
    assert difference.gradients > bound


def test_a_gradient_that_is_missing_is_a_difference():
    difference = compare(trial(rows.detach() * x, rows * x))
    assert difference.forward == 0
    assert difference.gradients > 0.1


def test_two_percent_of_scale_is_beyond_the_bound_of_a_float32_oracle():
    difference = compare(trial((1.02 * rows * x).tanh(), (rows * x).tanh()))
    assert difference.forward > comparison(precision=2.0**-23).bound(difference.summands)


@pytest.mark.parametrize("leaf", ["x", "rows"])
def test_nan_passes_nowhere(leaf):
    x_or_nan = x * torch.nan if leaf == "x" else x
    rows_or_nan = rows * torch.nan if leaf == "rows" else rows
    difference = compare(trial(rows_or_nan * x_or_nan, rows * x))
    assert not difference.forward <= 1
    assert not difference.gradients <= 1


def test_a_table_without_part_is_seen():
    assert compare(trial(rows.detach() * x, rows.detach() * x)).tables == 0


def test_positions_without_tables_must_move_the_output():
    for share, want in ((1.0, 0.0), (0.5, 0.5)):
        one = Trial(rows * x, rows * x, {"x": x}, plain=share * rows * x)
        assert compare(one).tables == pytest.approx(want)


def test_shapes_must_be_the_same():
    with pytest.raises(AssertionError, match="is not"):
        compare(trial(x[None], x))


def test_tables_of_another_shape_are_refused():
    from relpos.positions import Shaw

    q = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    position = Shaw(4, 2, values=False)
    with pytest.raises(AssertionError, match=r"keys: \(1, 4, 4\) is not \(1, 5, 4\)"):
        attended(position, {"keys": torch.zeros(1, 4, 4, dtype=torch.float64)}, q, q, q)
