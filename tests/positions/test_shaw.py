"""`Shaw`: keys and values against the double loop, `2k + 1` rows, clamp and zero beyond."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import Shaw
from tests.factories import LENGTHS, judged, qkv, table


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("distance", [(3, 3), (2, 0), (0, 4), (0, 0), (100, 100)])
@pytest.mark.parametrize("heads", [1, 2])
def test_keys_and_values_equal_the_double_loop(lengths, distance, heads):
    position = Shaw(5, distance, heads, dtype=torch.float64)
    q, k, v = qkv(*lengths)
    got = relpos.attention(*position(q, k)[:2], v, position(q, k)[2])
    keys, values = (table(rows, -distance[0]) for rows in (position.keys, position.values))
    assert_close(got, judged(q, k, v, keys=keys, values=values))


@pytest.mark.parametrize("part", ["keys", "values"])
def test_either_table_can_be_left_out(part):
    position = Shaw(5, 2, **{other: other == part for other in ("keys", "values")})
    position = position.double()
    q, k, v = qkv(7, 7)
    got = relpos.attention(q, k, v, position(q, k)[2])
    assert_close(got, judged(q, k, v, **{part: table(getattr(position, part), -2)}))
    assert [name for name, _ in position.named_parameters()] == [part]


def test_zero_beyond_the_table_equals_the_double_loop():
    position = Shaw(5, 2, beyond="zero", dtype=torch.float64)
    q, k, v = qkv(9, 9)
    got = relpos.attention(q, k, v, position(q, k)[2])
    keys, values = (table(rows, -2, "zero") for rows in (position.keys, position.values))
    assert_close(got, judged(q, k, v, keys=keys, values=values))


def test_distance_k_has_2k_plus_1_rows_and_k_itself_has_one_of_its_own():
    position = Shaw(1, 3, keys=False, dtype=torch.float64)
    assert position.values.shape == (1, 7, 1)
    # Row n holds n, so that the output names the row that each key selected.
    position.values.data = torch.arange(7.0, dtype=torch.float64).view(1, 7, 1)
    q = k = v = torch.zeros(1, 1, 10, 1, dtype=torch.float64)
    terms = position(q, k)[2]
    selected = [
        relpos.attention(q[:, :, :1], k, v, terms, mask=torch.arange(10) == key, query_start=0)
        for key in range(10)
    ]
    # The lookup of the first of ten words with k = 3, as the post about Shaw's paper prints it.
    assert [int(row) for row in selected] == [3, 4, 5, 6, 6, 6, 6, 6, 6, 6]


def test_distance_0_has_one_row_for_all_offsets_that_changes_no_weight():
    position = Shaw(5, 0, dtype=torch.float64)
    assert position.keys.shape == position.values.shape == (1, 1, 5)
    q, k, v = qkv(7, 7)
    got = relpos.attention(q, k, v, position(q, k)[2])
    assert_close(got, relpos.attention(q, k, v) + position.values[0])


def test_rows_before_the_middle_look_back():
    position = Shaw(1, 1, values=False, dtype=torch.float64)
    position.keys.data = torch.tensor([[[100.0], [0.0], [0.0]]], dtype=torch.float64)
    q = torch.ones(1, 1, 4, 1, dtype=torch.float64)
    k, v = torch.zeros_like(q), torch.arange(4.0, dtype=torch.float64).view(1, 1, 4, 1)
    last = relpos.attention(q, k, v, position(q, k)[2], scale=1.0)[0, 0, 3]
    # Clamped, the row of -1 is shared by all keys behind the last query.
    assert_close(last, torch.tensor([1.0], dtype=torch.float64))


def test_a_shared_table_serves_any_number_of_heads_and_grouped_keys():
    position = Shaw(5, 2, dtype=torch.float64)
    q, k, v = qkv(6, 6, h=6, g=2)
    got = relpos.attention(q, k, v, position(q, k)[2])
    keys, values = (table(rows, -2) for rows in (position.keys, position.values))
    assert_close(got, judged(q, k, v, keys=keys, values=values))


@pytest.mark.no_typecheck
@pytest.mark.parametrize("distance", [-1, (2, -1), (1, 2, 3), 1.5, "far"])
def test_a_bad_distance_is_named(distance):
    with pytest.raises(ValueError, match=r"Shaw: max_distance must be an integer >= 0 or"):
        Shaw(8, distance)


def test_no_table_at_all_is_refused():
    with pytest.raises(ValueError, match="Shaw: keys or values must be True"):
        Shaw(8, 2, keys=False, values=False)


@pytest.mark.no_typecheck
def test_a_bad_beyond_is_named():
    with pytest.raises(ValueError, match="Shaw: beyond must be 'clamp' or 'zero', got 'wrap'"):
        Shaw(8, 2, beyond="wrap")
