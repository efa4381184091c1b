"""`Huang` against the double loop, causal and not."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import Huang
from tests.factories import LENGTHS, judged, qkv, table


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("max_length", [1, 7, 65, 100])
@pytest.mark.parametrize("heads", [1, 2])
def test_causal_attention_equals_the_double_loop(lengths, max_length, heads):
    position = Huang(5, max_length, heads, dtype=torch.float64)
    q, k, v = qkv(*lengths)
    got = relpos.attention(q, k, v, position(q, k)[2], causal=True)
    keys = table(position.keys, 1 - max_length)
    assert_close(got, judged(q, k, v, keys=keys, causal=True))


def test_the_last_row_belongs_to_the_token_itself():
    position = Huang(1, 3, dtype=torch.float64)
    position.keys.data = torch.tensor([[[0.0], [0.0], [100.0]]], dtype=torch.float64)
    q = torch.ones(1, 1, 5, 1, dtype=torch.float64)
    v = torch.arange(5.0, dtype=torch.float64).view(1, 1, 5, 1)
    got = relpos.attention(q, torch.zeros_like(q), v, position(q, q)[2], causal=True)
    assert_close(got, v)


def test_without_a_causal_mask_keys_ahead_use_the_last_row_and_no_other_querys():
    position = Huang(5, 9, dtype=torch.float64)
    q, k, v = qkv(9, 9)
    got = relpos.attention(q, k, v, position(q, k)[2])
    assert_close(got, judged(q, k, v, keys=table(position.keys, -8)))


@pytest.mark.no_typecheck
@pytest.mark.parametrize("max_length", [0, -3, 2.0, True])
def test_a_bad_length_is_named(max_length):
    with pytest.raises(ValueError, match="Huang: max_length must be an integer >= 1, got"):
        Huang(8, max_length)
