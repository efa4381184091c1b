"""The NumPy definition against values that can be worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from relpos.definition import Axis, Table, attention, grid_attention


def test_equal_scores_average_the_values():
    q, k, v = np.zeros((1, 1, 1, 2)), np.zeros((1, 1, 4, 2)), np.arange(4.0).reshape(1, 1, 4, 1)
    output, lse = attention(q, k, v)
    assert output.item() == 1.5
    np.testing.assert_allclose(lse.item(), np.log(4))


def test_the_offset_is_key_minus_query():
    bias = Table(np.array([[0.0, 0.0, 50.0]]), -1, "zero")  # only the next token counts
    v = np.arange(3.0).reshape(1, 1, 3, 1)
    output, _ = attention(np.zeros((1, 1, 3, 1)), np.zeros((1, 1, 3, 1)), v, bias=bias)
    np.testing.assert_allclose(output[0, 0, :2, 0], [1, 2])


def test_seed_003_row_numbers_of_ten_words():
    table = Table(np.arange(7.0).reshape(1, 7), first=-3)
    assert [table.at(0, j - 0) for j in range(10)] == [3, 4, 5, 6, 6, 6, 6, 6, 6, 6]
    assert [table.at(0, j - 9) for j in range(10)] == [0, 0, 0, 0, 0, 0, 0, 1, 2, 3]


def test_beyond_zero_adds_nothing():
    table = Table(np.ones((1, 3, 2)), first=-1, beyond="zero")
    assert table.at(0, 2).sum() == 0
    assert table.at(0, 1).sum() == 2


def test_the_scale_multiplies_keys_but_not_bias():
    one = np.ones((1, 1, 1, 1))
    keys, bias = Table(np.full((1, 1, 1), 3.0), 0), Table(np.full((1, 1), 5.0), 0)
    _, lse = attention(one, one, one, keys=keys, bias=bias, scale=0.5)
    np.testing.assert_allclose(lse.item(), 0.5 * (1 + 3) + 5)


def test_a_query_without_a_key_gives_zeros():
    one = np.ones((1, 1, 1, 1))
    output, lse = attention(one, one, one, mask=np.array(False))
    assert output.item() == 0
    assert lse.item() == -np.inf


def test_query_heads_share_key_heads_in_runs():
    q, k = np.zeros((1, 4, 1, 1)), np.zeros((1, 2, 1, 1))
    v = np.array([7.0, 9.0]).reshape(1, 2, 1, 1)
    assert attention(q, k, v)[0].ravel().tolist() == [7, 7, 9, 9]


def test_the_first_axis_is_the_slow_one():
    zeros = np.zeros((1, 1, 6, 1))
    v = np.arange(6.0).reshape(1, 1, 6, 1)
    down = Axis(bias=Table(np.array([[50.0]]), 1, "zero"))
    left = Axis(bias=Table(np.array([[50.0]]), -1, "zero"))
    output, _ = grid_attention(zeros, zeros, v, shape=(2, 3), axes=(down, left))
    # From row 0 and column 1: a row down and a column to the left is token 3.
    np.testing.assert_allclose(output[0, 0, 1], 3)


def test_half_an_offset_lies_between_two_rows():
    table = Table(np.array([[1.0, 5.0]]), 0)
    half = Fraction(1, 2)
    assert [table.at(0, x - half) for x in range(3)] == [1, 3, 5]
    zero = Table(np.array([[1.0, 5.0]]), 0, "zero")
    assert [zero.at(0, x - half) for x in range(3)] == [0.5, 3, 2.5]


def test_offsets_count_steps_of_the_finer_side():
    zeros, q = np.zeros((1, 1, 4, 1)), np.zeros((1, 1, 2, 1))
    v = np.arange(4.0).reshape(1, 1, 4, 1)
    own = Axis(bias=Table(np.array([[50.0]]), 0, "zero"))
    output, _ = grid_attention(q, zeros, v, shape=(4,), query_shape=(2,), axes=[own])
    np.testing.assert_allclose(output.ravel(), [0, 2], atol=1e-15)


@pytest.mark.parametrize(
    "given",
    [{"query_shape": (6,)}, {"axes": [Axis()]}, {"window": [None] * 3}, {"key_ranges": [None]}],
    ids=lambda given: next(iter(given)),
)
def test_each_axis_of_a_grid_has_an_entry(given: dict[str, Any]):
    x = np.zeros((1, 1, 6, 1))
    ((name, entries),) = given.items()
    words = f"{name} must have an entry for each of 2 axes, got {len(entries)}"
    with pytest.raises(ValueError, match=words):
        grid_attention(x, x, x, shape=(2, 3), **{"axes": (), **given})


def test_the_middle_of_the_joint_bias_is_the_token_itself():
    zeros, v = np.zeros((1, 1, 6, 1)), np.arange(6.0).reshape(1, 1, 6, 1)
    joint_bias = np.zeros((1, 3, 5))
    joint_bias[0, 1, 2] = 50
    output, _ = grid_attention(zeros, zeros, v, shape=(2, 3), axes=(), joint_bias=joint_bias)
    np.testing.assert_allclose(output.ravel(), range(6), atol=1e-15)
