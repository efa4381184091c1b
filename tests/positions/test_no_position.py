"""No position: attention as it is, wherever a scheme may stand."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import relpos
from relpos.layers import GridAttention, MultiheadAttention
from relpos.positions import NoPosition
from tests.factories import normal, qkv


def test_attention_is_torchs():
    q, k, v = qkv(5, 9)
    same_q, same_k, terms = NoPosition()(q, k)
    assert same_q is q
    assert same_k is k
    got = relpos.attention(q, k, v, terms)
    assert_close(got, scaled_dot_product_attention(q, k, v))


def test_a_layer_is_as_without_a_position():
    layer, x = MultiheadAttention(8, 2).double(), normal(2, 5, 8)
    want = layer(x, x, x, is_causal=True)
    layer.position = NoPosition()
    assert_close(layer(x, x, x, is_causal=True), want)


def test_queries_may_be_pooled():
    layer = GridAttention(8, 2, query_pool=nn.AvgPool2d(2, ceil_mode=True)).double()
    x = normal(2, 8, 3, 5)
    want = layer(x)
    layer.position = NoPosition()
    assert_close(layer(x), want)


def test_nothing_is_added_to_the_scores():
    q, k, _ = qkv(5, 9)
    assert (NoPosition().logits(q, k) == torch.zeros(5, 9)).all()
    assert not NoPosition().state_dict()
