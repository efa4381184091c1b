"""Torch's attention with positions computes what it did, and then what its tables say."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from relpos import ShapeError
from relpos.adapters import add_positions, remove_positions
from relpos.positions import AbsoluteKeys, Grid
from tests.adapters.torch_models import CAUSAL, PADDING, B, D, E, H, N, attention, drawn, shaw
from tests.factories import normal

FLOATS = normal(B * H, N, N, seed=5)
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "float padding": {"key_padding_mask": normal(B, N, seed=3)},
    "causal": {"attn_mask": CAUSAL},
    "causal, hint": {"attn_mask": CAUSAL, "is_causal": True},
    "causal, hint, padding": {"attn_mask": CAUSAL, "is_causal": True, "key_padding_mask": PADDING},
    "floats": {"attn_mask": normal(N, N, seed=4)},
    "floats per head": {"attn_mask": FLOATS},
    "booleans per head, padding": {
        "attn_mask": (FLOATS > 0) & ~torch.eye(N, dtype=torch.bool) & (torch.arange(N) > 0),
        "key_padding_mask": PADDING,
    },
}


def results(layer, x, **arguments):
    """Output, weights, and the gradients of both."""
    x = x.clone().requires_grad_()
    output, weights = layer(x, x, x, **arguments)
    loss = (output * normal(*output.shape, seed=6)).sum()
    if weights is not None:
        loss = loss + (weights * normal(*weights.shape, seed=7)).sum()
    parameters = {n: p for n, p in layer.named_parameters() if "position" not in n}
    found = torch.autograd.grad(loss, [x, *parameters.values()])
    return output, weights, *found


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("form", [{}, {"batch_first": False}, {"bias": False}], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_at_zero_outputs_weights_and_gradients_are_torchs(masks, form, training):
    theirs = attention(**form).train(training)
    ours = copy.deepcopy(theirs)
    add_positions(ours, shaw)
    x = normal(B, N, E) if theirs.batch_first else normal(N, B, E)
    for wanted in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        given = MASKS[masks] | wanted
        assert_close(results(ours, x, **given), results(theirs, x, **given))
        with torch.no_grad():
            assert_close(ours(x, x, x, **given), theirs(x, x, x, **given))


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_sequence_without_a_batch_is_taken(batch_first):
    theirs = attention(batch_first=batch_first)
    ours = copy.deepcopy(theirs)
    add_positions(ours, shaw)
    x = normal(N, E)
    for masks in ({}, {"attn_mask": FLOATS[:H]}, {"key_padding_mask": PADDING[0]}):
        assert_close(ours(x, x, x, **masks), theirs(x, x, x, **masks))


@pytest.mark.parametrize("widths", [{}, {"kdim": 5}, {"vdim": 6}, {"kdim": 5, "vdim": 6}], ids=str)
def test_across_keys_of_other_number_and_width_are_taken(widths):
    theirs = attention(**widths)
    ours = copy.deepcopy(theirs)
    model = nn.ModuleDict({"cross": ours})
    add_positions(model, shaw, cross_attention=True)
    q, k, v = (normal(B, n, w, seed=n) for n, w in ((5, E), (9, ours.kdim), (9, ours.vdim)))
    upper_left = torch.ones(5, 9, dtype=torch.bool).triu(1)
    for masks in ({}, {"attn_mask": upper_left}, {"attn_mask": upper_left, "is_causal": True}):
        for need_weights in (True, False):
            given = masks | {"need_weights": need_weights}
            assert_close(ours(q, k, v, **given), theirs(q, k, v, **given))


def test_across_both_sides_count_from_zero():
    model = nn.ModuleDict({"cross": attention()})
    add_positions(model, shaw, cross_attention=True)
    layer, memory, x = drawn(model)["cross"], normal(B, 9, E), normal(B, 5, E, seed=1)
    whole, part = (layer(q, memory, memory)[0] for q in (x, x[:, :3]))
    assert_close(whole[:, :3], part)


def test_self_attention_over_other_tokens_is_refused():
    layer = attention()
    add_positions(layer, shaw)
    x = normal(B, N, E)
    with pytest.raises(ShapeError, match=r"key must have as many tokens as query, 2, .* got 7; ex"):
        layer(x[:, :2], x, x)


def test_the_hint_alone_is_refused_as_by_torch():
    layer = attention()
    add_positions(layer, shaw)
    x = normal(B, N, E)
    with pytest.raises(ValueError, match="attn_mask must be given with is_causal=True"):
        layer(x, x, x, is_causal=True)


class Patches(nn.Module):
    """The attention of a vision transformer, with queries that are not the values (DETR)."""

    def __init__(self):
        super().__init__()
        self.self_attention = attention()

    def forward(self, x):
        q = k = x + 1
        return x + self.self_attention(q, k, value=x, need_weights=False)[0]


def test_a_module_of_ones_own_takes_a_grid_behind_a_class_token():
    model, x = Patches(), normal(B, 7, E)
    want = model(x)
    add_positions(model, lambda heads, head_dim: Grid(head_dim, (2, 3), heads, prefix=1))
    assert_close(model(x), want)
    assert not torch.allclose(drawn(model)(x), want)


def test_dropout_of_the_weights_has_the_same_distribution():
    layer = attention(dropout=0.3).train()
    x, runs = normal(1, N, E).expand(4000, -1, -1), []
    torch.manual_seed(2)
    for _ in range(2):
        runs.append(layer(x, x, x, need_weights=False)[0].detach())
        if len(runs) == 1:
            add_positions(layer, shaw)
    theirs, ours = runs
    # Five standard errors of a difference of means, and of variances of a few kurtosis.
    error = 5 * (theirs.var(0) * 2 / 4000).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < error).all()
    assert_close(ours.var(0), theirs.var(0), rtol=0.25, atol=0)


def test_autocast_is_taken():
    layer = attention(dtype=torch.float32)
    x = normal(B, N, E, dtype=torch.float32)
    add_positions(layer, shaw)
    with torch.autocast("cpu", torch.bfloat16):
        got, weights = layer(x, x, x, attn_mask=CAUSAL, key_padding_mask=PADDING)
    assert got.dtype == torch.bfloat16
    assert_close(weights.sum(-1).float(), torch.ones(B, N), rtol=1e-2, atol=0)


def test_gradient_checkpointing_computes_the_same():
    layer = attention()
    add_positions(layer, shaw)
    drawn(layer)
    x, found = normal(B, N, E), []
    for run in (layer, lambda *x: checkpoint(layer, *x, use_reentrant=False)):
        layer.zero_grad()
        run(x, x, x)[0].square().sum().backward()
        found.append([parameter.grad for parameter in layer.parameters()])
    assert_close(*found)


def test_a_position_that_counts_from_the_start_counts_from_the_sequences():
    layer = attention()
    add_positions(layer, lambda heads, head_dim: AbsoluteKeys(head_dim, 9))
    drawn(layer)
    x = normal(B, N, E)
    got = layer(x, x, x, need_weights=False)[0]
    rows = layer.position.rows[:N]
    remove_positions(layer)
    q, k, v = (x @ layer.in_proj_weight.mT + layer.in_proj_bias).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (H, D)).transpose(1, 2) for part in (q, k, v))
    want = layer.out_proj(scaled_dot_product_attention(q, k + rows, v).transpose(1, 2).flatten(2))
    assert_close(got, want)


@pytest.mark.parametrize("kdim", [None, 10])
def test_drawing_parameters_anew_is_torchs_with_and_without_gradients(kdim):
    """As transformers does it for every `nn.MultiheadAttention` of a new model."""
    layers = [nn.MultiheadAttention(E, H, kdim=kdim, batch_first=True) for _ in range(3)]
    for layer in layers[1:]:
        model = nn.ModuleList([layer])
        add_positions(model, shaw, cross_attention=True)
        layer.position.requires_grad_(False)
    for layer, frozen in zip(layers, (False, False, True), strict=True):
        torch.manual_seed(3)
        with torch.set_grad_enabled(not frozen):
            layer._reset_parameters()
    for layer in layers[1:]:
        for name, parameter in layers[0].named_parameters():
            if name != "out_proj.weight":
                assert torch.equal(dict(layer.named_parameters())[name], parameter), name
