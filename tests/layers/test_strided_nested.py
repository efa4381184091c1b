"""Strided nested tensors, which torch's encoders make of padded sequences in inference."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from relpos import ShapeError
from relpos.layers import MultiheadAttention
from relpos.positions import AbsoluteKeys, Compose, Shaw, T5Bias

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but"),
]


def layer(batch_first: bool = True) -> MultiheadAttention:
    torch.manual_seed(0)
    # Not of offsets alone: each sequence counts from its own beginning.
    position = Compose(Shaw(8, max_distance=3), AbsoluteKeys(8, max_length=9))
    return MultiheadAttention(16, 2, batch_first=batch_first, position=position).eval()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
def test_each_sequence_gets_what_it_gets_alone(causal, batch_first):
    attention = layer(batch_first)
    parts = [torch.randn(length, 16) for length in (5, 3, 9)]
    x = torch.nested.as_nested_tensor(parts)
    output, weights = attention(x, x, x, is_causal=causal)
    assert output.is_nested
    for one, got, shares in zip(parts, output.unbind(), weights, strict=True):
        want, alone = attention(one, one, one, is_causal=causal)
        assert_close(got, want)
        assert_close(shares[: len(one), : len(one)], alone)


def test_an_encoder_that_was_given_our_layers_later_infers_as_it_trains():
    torch.manual_seed(1)
    of_torch = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(of_torch, 2)
    for block in model.layers:
        block.self_attn = MultiheadAttention(16, 2, position=T5Bias(2))
    assert model.use_nested_tensor
    x = torch.randn(2, 7, 16)
    padding = torch.arange(7) >= torch.tensor([[7], [4]])
    want = model.train()(x, src_key_padding_mask=padding)
    with torch.no_grad():
        got = model.eval()(x, src_key_padding_mask=padding)
    assert_close(got[~padding], want[~padding])


@pytest.mark.no_typecheck
def test_what_does_not_go_with_them_is_named():
    attention, parts = layer(), [torch.randn(5, 16), torch.randn(3, 16)]
    x, other = (torch.nested.as_nested_tensor(x) for x in (parts, parts[::-1]))
    with pytest.raises(ShapeError, match=r"as many tokens as query, \[5, 3\], .* got \[3, 5\] and"):
        attention(x, other, other)
    with pytest.raises(ShapeError, match="value must be nested as query is, got"):
        attention(x, x, torch.zeros(2, 5, 16))
    with pytest.raises(ValueError, match="documents must be None with nested tensors"):
        attention(x, x, x, documents=torch.zeros(1, 5, dtype=torch.int64))
