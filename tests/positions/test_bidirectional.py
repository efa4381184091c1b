"""`Bidirectional` against the double loop, and its mirror image."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import Bidirectional
from tests.factories import LENGTHS, judged, qkv, table


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("max_length", [1, 7, 65])
@pytest.mark.parametrize("heads", [1, 2])
def test_attention_equals_the_double_loop(lengths, max_length, heads):
    position = Bidirectional(5, max_length, heads, dtype=torch.float64)
    assert position.keys.shape == (heads, 2 * max_length - 1, 5)
    q, k, v = qkv(*lengths)
    got = relpos.attention(q, k, v, position(q, k)[2])
    assert_close(got, judged(q, k, v, keys=table(position.keys, 1 - max_length)))


def test_reversing_the_sequence_and_the_table_reverses_the_output():
    position = Bidirectional(5, 11, dtype=torch.float64)
    q, k, v = qkv(11, 11)
    got = relpos.attention(q, k, v, position(q, k)[2])
    position.keys.data = position.keys.data.flip(1)
    q, k, v = (x.flip(2) for x in (q, k, v))
    assert_close(relpos.attention(q, k, v, position(q, k)[2]).flip(2), got)


def test_a_bad_length_is_named():
    with pytest.raises(ValueError, match="Bidirectional: max_length must be an integer >= 1"):
        Bidirectional(8, 0)
