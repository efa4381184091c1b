"""Torch's encoders and decoders with positions: fused and nested inference, masks, hints."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from relpos import ShapeError
from relpos.adapters import add_positions, remove_positions
from tests.adapters.torch_models import CAUSAL, PADDING, B, E, H, N, attention, drawn, shaw
from tests.factories import normal

# torch's, of its own nested tensors and of what it cannot fuse.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but"),
]


def shaw_by_hand(layer, x, dropped=None):
    """`W_o softmax(q (k + K) / sqrt(d)) (v + V)`, with a row looked up for each pair."""
    d = layer.head_dim
    q, k, v = (x @ layer.in_proj_weight.mT + layer.in_proj_bias).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (-1, d)).transpose(1, 2) for part in (q, k, v))
    steps = torch.arange(x.shape[1])
    rows = (steps - steps[:, None]).clamp(-3, 3) + 3
    keys, values = (table[:, rows] for table in (layer.position.keys, layer.position.values))
    scores = (q @ k.mT + torch.einsum("bhid,hijd->bhij", q, keys)) / d**0.5
    if dropped is not None:
        scores = scores.masked_fill(dropped[:, None, None], -torch.inf)
    weights = scores.softmax(-1)
    heads = weights @ v + torch.einsum("bhij,hijd->bhid", weights, values)
    return layer.out_proj(heads.transpose(1, 2).flatten(2))


def encoder(**arguments):
    """With an even number of heads, which torch can fuse."""
    torch.manual_seed(0)
    arguments = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64} | arguments
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(E, 4, 16, **arguments), 2).eval()


@pytest.mark.parametrize("frozen", [False, True])
def test_trained_tables_act_in_the_fused_inference_of_an_encoder_layer(frozen: bool):
    layer = encoder().layers[0]
    add_positions(layer, shaw)
    x = normal(B, N, E)
    drawn(layer).requires_grad_(not frozen)
    with torch.set_grad_enabled(frozen):
        got = layer(x, src_key_padding_mask=PADDING)
        y = layer.norm1(x + shaw_by_hand(layer.self_attn, x, PADDING))
        want = layer.norm2(y + layer.linear2(layer.linear1(y).relu()))
    assert_close(got, want)


def encoder_call(kind, model, x):
    masks = {
        "plain": {},
        "padding": {"src_key_padding_mask": PADDING},
        "causal": {"mask": CAUSAL, "is_causal": True},
        "detected": {"mask": CAUSAL, "src_key_padding_mask": PADDING},
    }[kind]
    return model(x if model.layers[0].self_attn.batch_first else x.transpose(0, 1), **masks)


@pytest.mark.parametrize("kind", ["plain", "padding", "causal", "detected"])
@pytest.mark.parametrize("form", [{}, {"batch_first": False}, {"norm_first": True}], ids=str)
def test_an_encoder_computes_what_it_did_fused_and_not(kind, form):
    model = encoder(**form)
    want = []
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            want.append(encoder_call(kind, model, normal(B, N, E)))
    add_positions(model, shaw)
    for context, each in zip((torch.no_grad, torch.enable_grad), want, strict=True):
        with context():
            assert_close(encoder_call(kind, model, normal(B, N, E)), each)


def test_where_torch_nests_the_sequences_trained_tables_act_on_each():
    """An encoder turns padded sequences into nested tensors in inference, and back into zeros."""
    model = encoder()
    assert model.use_nested_tensor
    add_positions(model, shaw)
    drawn(model)
    x = normal(B, N, E)
    with torch.no_grad():
        got = model(x, src_key_padding_mask=PADDING)
        assert_close(got[0, 5:], torch.zeros(2, E, dtype=torch.float64))
        assert_close(got[0, :5], model(x[:1, :5])[0])
        assert_close(got[1], model(x[1:])[0])
        remove_positions(model)
        assert not torch.allclose(got[1], model(x[1:])[0])


def test_tables_learn_through_nested_sequences_while_the_rest_is_frozen():
    model = encoder()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    add_positions(model, shaw)
    output = model(normal(B, N, E), src_key_padding_mask=PADDING)
    (output * normal(B, N, E, seed=1)).sum().backward()
    tables = [p for name, p in model.named_parameters() if "position." in name]
    assert all(table.grad is not None and table.grad.abs().max() > 0.01 for table in tables)


def nested(*lengths):
    parts = [normal(length, E, seed=length) for length in lengths]
    return torch.nested.as_nested_tensor(parts), parts


def test_nested_tensors_have_no_masks_and_one_length_on_both_sides():
    layer = attention().eval()
    add_positions(layer, shaw)
    (x, _), (other, _) = nested(3, 5), nested(3, 4)
    with pytest.raises(ValueError, match="must be None with nested tensors, got a mask"):
        layer(x, x, x, key_padding_mask=PADDING)
    with pytest.raises(ShapeError, match=r"as many tokens as query, \[3, 5\], .*got \[3, 4\]"):
        layer(x, other, other)


def test_jagged_sequences_come_back_with_their_offsets():
    model = encoder()
    add_positions(model, shaw)
    drawn(model)
    parts = [normal(length, E, seed=length) for length in (3, 5)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    layer = model.layers[0]
    found = x + layer.self_attn(x, x, x, need_weights=False)[0]
    for got, part in zip(found.unbind(), parts, strict=True):
        alone = layer.self_attn(part[None], part[None], part[None], need_weights=False)[0][0]
        assert_close(got, part + alone)
    for training in (False, True):
        for got, part in zip(model.train(training)(x).unbind(), parts, strict=True):
            assert_close(got, model(part[None])[0])


def test_a_decoder_computes_what_it_did():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(E, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    model = nn.TransformerDecoder(layer, 2)
    x, memory = normal(B, N, E), normal(B, 9, E, seed=1)
    mask = nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64)
    calls = [{}, {"tgt_is_causal": True}, {"tgt_key_padding_mask": PADDING.double() * -1e9}]
    want = [model(x, memory, tgt_mask=mask, **call) for call in calls]
    add_positions(model, shaw, cross_attention=True)
    for call, each in zip(calls, want, strict=True):
        assert_close(model(x, memory, tgt_mask=mask, **call), each)
    # Causal still: what comes last changes nothing before.
    drawn(model)
    got = [model(each, memory, tgt_mask=mask) for each in (x, torch.cat([x[:, :-1], x[:, :1]], 1))]
    assert_close(got[0][:, :-1], got[1][:, :-1])
