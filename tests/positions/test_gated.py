"""`GatedBias` over any table of scalars, against the double loop."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.layers import MultiheadAttention
from relpos.offsets import offsets
from relpos.positions import Alibi, GatedBias, Shaw, T5Bias, WindowBias
from tests.factories import LENGTHS, judged, normal, qkv


def built(heads=2, width=3, bias=None, **arguments):
    """A position whose numbers are all their own."""
    position = GatedBias(bias or T5Bias(heads, 8, 20), heads, width, **arguments).double()
    with torch.no_grad():
        for n, numbers in enumerate(position.parameters()):
            numbers.copy_(normal(*numbers.shape, seed=7 + n))
    return position


def gated(position, x, bias):
    """Chen et al. 2022: `B + u B + (1 - u) c r B`, token by token."""
    weight, shift = (numbers.detach().numpy() for numbers in position.gates.parameters())
    c = position.reset.detach().numpy()
    x, bias = x.numpy(), bias.detach().numpy()
    out = np.empty((len(x), *bias.shape))
    for b, h, i in np.ndindex(*out.shape[:3]):
        width = position.head_dim
        share = x[b, i, h * width : (h + 1) * width]
        opened, reset = 1 / (1 + np.exp(-(weight @ share + shift)))
        update = 1 - opened
        rest = c[h] * reset * bias[h, i]
        out[b, h, i] = bias[h, i] + update * bias[h, i] + (1 - update) * rest
    return out


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_attention_equals_the_double_loop(lengths, scale):
    position = built(scale=scale)
    q, k, v = qkv(*lengths)
    x = normal(2, lengths[0], 6, seed=5)
    mask = gated(position, x, position.bias.dense(*lengths))
    got = relpos.attention(q, k, v, position(q, k, x)[2], scale=scale)
    assert_close(got, judged(q, k, v, mask=mask, scale=scale))


def test_any_bias_can_be_gated_wherever_the_queries_start():
    position = built(bias=Alibi(2))
    q, k, _ = qkv(3, 7)
    x = normal(2, 3, 6)
    away = (torch.arange(7.0) - (20 + torch.arange(3.0))[:, None]).abs().double()
    want = gated(position, x, -position.bias.slopes[:, None, None] * away)
    assert_close(position.logits(q, k, x, query_start=20), torch.from_numpy(want))


def test_shared_tables_and_grouped_keys_serve_all_heads():
    position = built(heads=6, bias=T5Bias(1, 8, 20))
    q, k, v = qkv(5, 9, h=6, g=2)
    x = normal(2, 5, 18)
    mask = gated(position, x, position.bias.dense(5, 9).expand(6, -1, -1))
    assert_close(relpos.attention(q, k, v, position(q, k, x)[2]), judged(q, k, v, mask=mask))


def test_layers_can_share_the_table():
    table = T5Bias(2)
    layers = torch.nn.ModuleList(GatedBias(table, 2, 3) for _ in range(3))
    names = [name for name, _ in layers.named_parameters() if "bias.bias" in name]
    assert names == ["0.bias.bias"]


def test_initialising_a_layer_leaves_a_shared_table_alone():
    table = T5Bias(2)
    before = table.bias.detach().clone()
    position = GatedBias(table, 2, 3)
    position.reset_parameters()
    assert torch.equal(table.bias, before)
    assert torch.equal(position.reset, torch.ones(2))


class Slope(torch.nn.Module):
    """A scheme of one's own, which is no `Position` and says nothing of itself."""

    def forward(self, q, k):
        rows = torch.linspace(-1, 1, 2 * 7, dtype=q.dtype).view(2, 7)
        return q, k, relpos.Terms(bias=relpos.OffsetTable(rows, first=-3))


def test_any_module_with_a_bias_of_scalars_can_be_gated():
    position = built(bias=Slope())
    q, k, _ = qkv(5, 9)
    x = normal(2, 5, 6)
    at = offsets(5, 9)
    want = gated(position, x, Slope()(q, k)[2].bias.rows[:, (at + 3).clamp(0, 6)])
    assert_close(position.logits(q, k, x), torch.from_numpy(want))


@pytest.mark.no_typecheck
@pytest.mark.parametrize("other", [None, WindowBias(2, (3, 3)), Shaw(3, 2), "t5", T5Bias])
def test_what_has_no_bias_over_offsets_is_named_when_it_is_given(other):
    name = type(other).__name__
    with pytest.raises(TypeError, match=rf"GatedBias: bias must be a module .*T5Bias.*got {name}$"):
        GatedBias(other, 2, 3)
    with pytest.raises(
        TypeError, match=r"GatedBias: bias must be called .* got Linear, which takes"
    ):
        GatedBias(torch.nn.Linear(3, 3), 2, 3)


class Moving(torch.nn.Module):
    """Terms, and what happens to the keys, as told."""

    def __init__(self, terms, by=0):
        super().__init__()
        self.terms, self.by = terms, by

    def forward(self, q, k):
        return q, k + self.by if self.by else k, self.terms


def test_what_has_no_bias_over_offsets_is_named_when_it_is_called():
    q, k, _ = qkv(4, 4)
    scalars = relpos.OffsetTable(torch.zeros(2, 3, dtype=torch.float64), first=-1)
    vectors = relpos.OffsetTable(torch.zeros(2, 3, 5, dtype=torch.float64), first=-1)
    for terms, by, words in (
        (relpos.Terms(), 0, "nothing"),
        (relpos.Terms(keys=vectors, bias=scalars), 0, "keys and bias"),
        (relpos.GridTerms((2, 2)), 0, "a grid"),
        (relpos.Terms(bias=scalars), 1, "bias and other queries or keys"),
    ):
        position = GatedBias(Moving(terms, by), 2, 3).double()
        with pytest.raises(TypeError, match=f"GatedBias: bias must .* got {words} from Moving"):
            position(q, k, normal(2, 4, 6))


def test_a_layer_takes_its_input_and_scale():
    position = GatedBias(T5Bias(2, 8, 20), 2, 3, scale=0.3)
    layer = MultiheadAttention(6, 2, position=position)
    assert layer(*[torch.randn(2, 5, 6)] * 3)[0].isfinite().all()


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    position = GatedBias(T5Bias(2), 2, 3)
    q, k, _ = (x.float() for x in qkv(4, 4))
    with pytest.raises(relpos.ShapeError, match=r"GatedBias: x must be \(b, i, e\) with e=6, got"):
        position(q, k, torch.zeros(2, 4, 7))
    with pytest.raises(relpos.ShapeError, match=r"GatedBias: q must be .* with h=2, got"):
        position(*(x.float() for x in qkv(4, 4, h=3)[:2]), torch.zeros(2, 4, 6))
    with pytest.raises(relpos.ShapeError, match=r"GatedBias: x must be torch.float32 on cpu as"):
        position(q, k, torch.zeros(2, 4, 6, dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"heads": 0}, "heads must be an integer >= 1, got 0"),
        ({"head_dim": 0}, "head_dim must be an integer >= 1, got 0"),
        ({"scale": 0.0}, "scale must be a positive number, got 0.0"),
        ({"scale": float("nan")}, "scale must be a positive number, got nan"),
    ],
)
def test_bad_sizes_are_named(arguments, named):
    with pytest.raises(ValueError, match=f"GatedBias: {named}"):
        GatedBias(T5Bias(2), **{"heads": 2, "head_dim": 3} | arguments)
