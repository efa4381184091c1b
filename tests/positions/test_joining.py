"""Terms joined: biases over any two windows are added exactly, the rest as it is or refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import relpos
from relpos import GridTerms, OffsetTable, Terms
from relpos.offsets import rows_at
from relpos.positions.joining import add_tables, join_terms, pin_queries
from tests.factories import normal


def scalars(rows, first=0, beyond="clamp", heads=1, seed=0):
    return OffsetTable(normal(heads, rows, seed=seed), first, beyond)


def vectors(rows=3, first=-1):
    return OffsetTable(normal(1, rows, 4), first)


windows = st.tuples(
    st.integers(1, 6),
    st.integers(-9, 9),
    st.sampled_from(["clamp", "zero"]),
    st.sampled_from([1, 3]),
)


@given(one=windows, other=windows)
def test_a_sum_has_at_every_offset_what_both_have(one, other):
    one, other = scalars(*one), scalars(*other, seed=1)
    got = rows_at(add_tables(one, other), -30, 30)
    assert_close(got, rows_at(one, -30, 30) + rows_at(other, -30, 30))


@pytest.mark.parametrize("beyond", ["clamp", "zero"])
def test_of_two_of_a_kind_there_is_no_row_beyond_the_union(beyond):
    total = add_tables(scalars(3, -2, beyond), scalars(4, 1, beyond))
    assert (total.first, total.last, total.beyond) == (-2, 4, beyond)


def test_gradients_of_a_sum_reach_both_tables():
    one, other = (normal(2, rows).requires_grad_() for rows in (3, 5))

    def total(one, other):
        return add_tables(OffsetTable(one, 0), OffsetTable(other, -4, "zero")).rows

    assert torch.autograd.gradcheck(total, (one, other))


def test_different_kinds_stand_beside_each_other():
    q_rel, keys, values = normal(1, 2, 5, 4), vectors(), vectors()
    terms = join_terms("Compose", Terms(keys=keys, q_rel=q_rel), Terms(values=values))
    assert terms.keys is keys
    assert terms.values is values
    assert terms.q_rel is q_rel
    other_way = join_terms("Compose", Terms(values=values), Terms(keys=keys, q_rel=q_rel))
    assert other_way.q_rel is q_rel


@pytest.mark.parametrize("kind", ["keys", "queries", "values"])
def test_two_tables_of_vectors_are_refused(kind):
    terms = Terms(**{kind: vectors()})
    message = f"Compose: positions must have at most one table of {kind} between them, got two"
    with pytest.raises(ValueError, match=message):
        join_terms("Compose", terms, terms)
    grid = GridTerms((2, 3), (terms, Terms()))
    with pytest.raises(ValueError, match=message):
        join_terms("Compose", grid, grid)


def test_nothing_leaves_the_other_as_it_is():
    for terms in (Terms(bias=scalars(3)), GridTerms((2, 3), query_shape=(1, 3), prefix=1)):
        assert join_terms("Compose", terms, Terms()) is terms
        assert join_terms("Compose", Terms(), terms) is terms


def test_grids_are_joined_axis_by_axis():
    keys, bias, joint = vectors(), scalars(3, -1), normal(1, 3, 5)
    one = GridTerms((2, 3), (Terms(keys=keys), Terms(bias=bias)), joint_bias=joint)
    other = GridTerms((2, 3), (Terms(), Terms(bias=bias)), joint_bias=joint)
    for terms in (join_terms("Compose", one, other), join_terms("Compose", other, one)):
        assert terms.axes[0].keys is keys
        assert_close(rows_at(terms.axes[1].bias, -3, 3), 2 * rows_at(bias, -3, 3))
        assert_close(terms.joint_bias, 2 * joint)
    alone = join_terms("Compose", one, GridTerms((2, 3), (Terms(), Terms(keys=keys))))
    assert_close(alone.joint_bias, joint)
    assert join_terms("Compose", GridTerms((2, 3)), GridTerms((2, 3))).joint_bias is None


@pytest.mark.parametrize(
    "other", [GridTerms((3, 2)), GridTerms((2, 3), query_shape=(1, 3)), GridTerms((2, 3), prefix=1)]
)
def test_different_grids_are_refused(other):
    message = r"Compose: positions must all have terms of the same grid, got \(2, 3\) with 0 tokens"
    with pytest.raises(ValueError, match=message):
        join_terms("Compose", GridTerms((2, 3)), other)


def test_a_line_and_a_grid_are_refused():
    line, grid = Terms(bias=scalars(3)), GridTerms((2, 3))
    for pair in ((line, grid), (grid, line)):
        with pytest.raises(ValueError, match="Compose: positions must all have terms of a"):
            join_terms("Compose", *pair)


def test_biases_on_different_devices_are_refused():
    away = OffsetTable(torch.zeros(1, 3, device="meta"), 0)
    here = scalars(3)
    with pytest.raises(relpos.ShapeError, match="biases on one device, got cpu and meta"):
        join_terms("Compose", Terms(bias=here), Terms(bias=away))


def test_rows_of_keys_stay_with_their_queries():
    q, other = normal(1, 1, 3, 4), normal(1, 1, 3, 2)
    keys = vectors()
    assert pin_queries("Compose", Terms(keys=keys), q, None).q_rel is q
    assert pin_queries("Compose", Terms(keys=keys), None, q).q_rel is None
    gated = Terms(keys=OffsetTable(normal(1, 3, 2), 0), q_rel=other)
    assert pin_queries("Compose", gated, q, q).q_rel is other
    assert pin_queries("Compose", Terms(bias=scalars(3)), q, q).q_rel is None
    grid = pin_queries("Compose", GridTerms((1, 3), (Terms(keys=keys), Terms())), q, q)
    assert [axis.q_rel is q for axis in grid.axes] == [True, False]


def test_rows_of_queries_cannot_stay_with_their_keys():
    q = normal(1, 1, 3, 4)
    terms = Terms(queries=vectors())
    assert pin_queries("Compose", terms, q, None) is terms
    with pytest.raises(ValueError, match=r"Compose: positions must come in an order .* put the"):
        pin_queries("Compose", terms, q, q)
