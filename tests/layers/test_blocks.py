import torch
from torch.testing import assert_close

from relpos.layers import DecoderBlock, KeyValueCache, MultiheadAttention
from relpos.positions import Huang

from ..factories import normal


def block(**arguments):
    torch.manual_seed(0)
    attention = MultiheadAttention(12, 3, position=Huang(4, 7))
    return DecoderBlock(attention, **arguments).double()


def test_a_block_adds_attention_and_then_the_mlp():
    made, x = block(), normal(2, 9, 12)
    y = made.attention_norm(x)
    x_ = x + made.attention(y, y, y, is_causal=True)[0]
    assert_close(made(x), x_ + made.mlp(made.mlp_norm(x_)))


def test_a_block_is_causal():
    made, x = block(), normal(2, 9, 12)
    later = x.clone()
    later[:, 5:] += 1
    assert_close(made(later)[:, :5], made(x)[:, :5])


def test_a_block_takes_a_cache():
    made, x, cache = block(), normal(2, 9, 12), KeyValueCache()
    parts = [made(part, cache) for part in x.split([4, 1, 4], 1)]
    assert_close(torch.cat(parts, 1), made(x))


def test_the_mlp_is_four_times_as_wide_unless_told():
    assert block().mlp[0].out_features == 48
    assert block(hidden=7).mlp[0].out_features == 7


def test_dropout_acts_in_training_only():
    made, x = block(dropout=0.5), normal(2, 9, 12)
    assert not torch.equal(made(x), made(x))
    assert torch.equal(made.eval()(x), made(x))
