"""The skew and its adjoint, against the index that they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from relpos import ShapeError, relative_to_absolute, skew
from relpos.shear import absolute_to_relative

SIZES = [(1, 1), (1, 33), (33, 1), (33, 33), (33, 65), (65, 33)]


def by_index(x: torch.Tensor, columns: int) -> torch.Tensor:
    """The literal double loop."""
    rows = x.shape[-2]
    y = x.new_zeros(*x.shape[:-1], columns)
    for a in range(rows):
        for c in range(columns):
            y[..., a, c] = x[..., a, c + rows - 1 - a]
    return y


@pytest.mark.parametrize(("i", "j"), SIZES)
@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_relative_to_absolute_is_the_index(i: int, j: int, leading: tuple[int, ...]):
    x = torch.randn(*leading, i, i + j - 1)
    assert torch.equal(relative_to_absolute(x), by_index(x, j))


def test_relative_to_absolute_copies_nothing():
    x = torch.randn(2, 5, 9)
    assert relative_to_absolute(x).data_ptr() == x.data_ptr() + 4 * x.element_size()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(i=st.integers(1, 9), j=st.integers(1, 9))
def test_inputs_need_not_be_contiguous(i: int, j: int):
    x = torch.randn(i + j - 1, 2, i).permute(1, 2, 0)
    assert torch.equal(relative_to_absolute(x), by_index(x, j))


def test_rows_that_hold_their_offsets_become_key_minus_query():
    """All `2L - 1` offsets, where the skew of Huang et al. (2018) has only those up to 0."""
    x = torch.arange(-4.0, 5).expand(5, 9)
    expected = torch.arange(5.0) - torch.arange(5.0)[:, None]
    assert torch.equal(relative_to_absolute(x), expected)


def test_skew_equals_the_paper_on_and_below_the_diagonal_only():
    """TRAPS 1: pad-reshape-slice holds the next query's scores above the diagonal."""
    x = torch.randn(5, 5)
    paper = pad(x, (1, 0)).reshape(6, 5)[1:]
    ours = skew(x, fill=7.0)
    below = torch.ones(5, 5).tril().bool()
    assert torch.equal(ours[below], paper[below])
    assert (ours[~below] == 7).all()


@pytest.mark.parametrize(("i", "j"), SIZES)
def test_skew_takes_nothing_from_another_query(i: int, j: int):
    """TRAPS 1: NaN in one row stays in that row."""
    for poisoned in {0, i // 2, i - 1}:
        x = torch.randn(2, i, j)
        x[:, poisoned] = torch.nan
        y = skew(x)
        others = [row for row in range(i) if row != poisoned]
        assert y[:, others].isfinite().all()


@pytest.mark.parametrize(("i", "j"), SIZES)
def test_skew_puts_each_offset_under_its_key(i: int, j: int):
    offset = torch.arange(j)[None] - (torch.arange(i)[:, None] + j - i)
    y = skew(torch.arange(1.0 - j, 1).expand(i, j), fill=99.0)
    assert torch.equal(y, offset.masked_fill(offset > 0, 99).to(y.dtype))


@pytest.mark.parametrize(("i", "j"), [(1, 1), (3, 4), (4, 3)])
def test_derivatives_of_every_order(i: int, j: int):
    x = torch.randn(2, i, i + j - 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(relative_to_absolute, x)
    assert torch.autograd.gradgradcheck(relative_to_absolute, x)
    y = torch.randn(2, i, j, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(skew, y)


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("function", [skew, relative_to_absolute])
def test_compiles_and_maps(function):
    x = torch.randn(3, 4, 6, requires_grad=True)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(torch.func.vmap(function)(x), function(x))
    compiled(x).square().sum().backward()
    step = torch.randn_like(x)
    _, slope = torch.func.jvp(lambda x: function(x).square().sum(), (x.detach(),), (step,))
    torch.testing.assert_close(slope, (x.grad * step).sum())


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("function", "shape", "message"),
    [
        (relative_to_absolute, (5, 4), r"w = i \+ j - 1 >= i >= 1, got \(5, 4\)"),
        (relative_to_absolute, (4,), r"got \(4,\)"),
        (skew, (3, 0), r"skew: x must be \(..., i, j\) with i >= 1 and j >= 1, got \(3, 0\)"),
        (skew, (3,), r"got \(3,\)"),
    ],
)
def test_wrong_shapes_are_named(function, shape: tuple[int, ...], message: str):
    with pytest.raises(ShapeError, match=message):
        function(torch.zeros(shape))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (2, 1), (5, 5), (4, 9), (9, 4)])
def test_absolute_to_relative_is_the_adjoint(rows: int, columns: int):
    x = torch.randn(2, rows, rows + columns - 1, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, rows, columns, dtype=torch.float64)
    (expected,) = torch.autograd.grad(relative_to_absolute(x), x, y)
    assert torch.equal(absolute_to_relative(y), expected)
    assert torch.equal(relative_to_absolute(absolute_to_relative(y)), y)


@pytest.mark.no_typecheck
def test_absolute_to_relative_wants_rows_and_columns():
    with pytest.raises(ValueError, match=r"absolute_to_relative: y must be \(..., i, j\)"):
        absolute_to_relative(torch.zeros(3))
