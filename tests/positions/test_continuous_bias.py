"""Swin v2's continuous bias and cosine attention: pair by pair, other windows, half precision."""

from itertools import product
from math import log, log2, prod

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos import definition
from relpos.layers import GridAttention
from relpos.positions import ContinuousBias
from tests.factories import normal

SHAPES = [(5, 7), (1, 9), (4,), (2, 3, 4)]
D = torch.float64


def drawn(heads, shape, **options):
    """A network whose numbers are all their own."""
    position = ContinuousBias(heads, shape, hidden=6, dtype=D, **options)
    with torch.no_grad():
        for n, numbers in enumerate(position.parameters()):
            numbers.copy_(normal(*numbers.shape, seed=n))
    return position


def tokens(shape, *, h=2, prefix=0, width=6):
    return [normal(1, h, prefix + prod(shape), width, seed=seed) for seed in range(3)]


def joint_bias(position, shape):
    """Liu et al. 2022, eq. 2-4, one offset after the other."""
    first, _, last = position.cpb_mlp
    weight, shift = first.weight.detach().numpy(), first.bias.detach().numpy()
    out = np.empty((position.heads, *(2 * n - 1 for n in shape)))
    for offset in product(*(range(1 - n, n) for n in shape)):
        x = []
        for o, n in zip(offset, position.pretrained_shape, strict=True):
            # The network is given query minus key, 8 at the far end of the window.
            share = -8 * o / max(n - 1, 1)
            x.append(np.sign(share) * log2(1 + abs(share)) / log2(8))
        logits = last.weight.detach().numpy() @ np.maximum(weight @ np.array(x) + shift, 0)
        at = tuple(o + n - 1 for o, n in zip(offset, shape, strict=True))
        out[(slice(None), *at)] = 16 / (1 + np.exp(-logits))
    return out


def cosines(position, q, k):
    """`t cos(q_i, k_j)` is what unit vectors times `t` have for a product."""
    scale = np.exp(np.minimum(position.logit_scale.detach().numpy(), log(100)))
    q, k = (x.numpy() / np.linalg.norm(x.numpy(), axis=-1, keepdims=True) for x in (q, k))
    return scale * q, k


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("cosine", [False, True])
def test_attention_equals_the_double_loop(shape, heads, prefix, cosine):
    position = drawn(heads, shape, prefix=prefix, cosine=cosine)
    q, k, v = tokens(shape, prefix=prefix)
    pair = cosines(position, q, k) if cosine else (q.numpy(), k.numpy())
    want, _ = definition.grid_attention(
        *pair, v.numpy(), axes=(), joint_bias=joint_bias(position, shape), shape=shape,
        prefix=prefix, scale=1.0 if cosine else None,
    )  # fmt: skip
    q, k, terms = position(q, k)
    got = relpos.attention(q, k, v, terms, scale=position.attention_scale)
    assert_close(got, torch.from_numpy(want))


@pytest.mark.parametrize("called", [(7, 5), (9, 9), (2, 3)])
@pytest.mark.parametrize("trained", [None, (4, 8)])
def test_another_window_asks_the_network_for_its_own_offsets(called, trained):
    position = drawn(2, (5, 7), pretrained_shape=trained)
    q, k, _ = tokens(called)
    terms = position(q, k, shape=called)[2]
    assert terms.shape == called
    assert_close(terms.joint_bias, torch.from_numpy(joint_bias(position, called)))


def test_the_scale_of_the_cosine_is_clamped():
    position = drawn(2, (2, 2))
    with torch.no_grad():
        position.logit_scale.copy_(torch.tensor([2.0, 9.0])[:, None, None])
    q, k, _ = tokens((2, 2))
    moved, unit, _ = position(q, k)
    assert_close(moved.norm(dim=-1)[0, :, 0], torch.tensor([2.0, log(100)], dtype=D).exp())
    assert_close(unit.norm(dim=-1), torch.ones(1, 2, 4, dtype=D))


def test_the_bias_lies_between_0_and_16():
    bias = drawn(4, (9, 9)).dense()
    assert bias.min() > 0
    assert 8 < bias.max() < 16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_neither_overflows_nor_divides_zeros(dtype):
    position = ContinuousBias(2, (2, 3)).to(dtype)
    large = torch.full((1, 2, 6, 64), 3e4 if dtype == torch.float16 else 1e30, dtype=dtype)
    for x in (large, torch.zeros_like(large)):
        q, k, terms = position(x, x)
        got = relpos.attention(q, k, torch.ones_like(x), terms, scale=1.0)
        assert_close(got, torch.ones_like(x))


def test_it_begins_at_a_scale_of_10():
    position = ContinuousBias(3, (2, 2))
    assert_close(position.logit_scale.detach(), torch.full((3, 1, 1), log(10)))
    assert [tuple(x.shape) for x in position.cpb_mlp.parameters()] == [(512, 2), (512,), (3, 512)]


def test_the_names_are_those_of_the_authors():
    names = ["logit_scale", "cpb_mlp.0.weight", "cpb_mlp.0.bias", "cpb_mlp.2.weight"]
    assert list(ContinuousBias(3, (2, 2)).state_dict()) == names
    assert list(ContinuousBias(3, (2, 2), cosine=False).state_dict()) == names[1:]


def test_a_layer_takes_the_scale_and_the_map():
    position = drawn(2, (3, 4))
    layer = GridAttention(12, 2, position=position).double()
    x = normal(2, 12, 5, 2)
    q, k, v = (
        part.unflatten(-1, (2, 6)).transpose(1, 2)
        for part in layer.in_proj(x.flatten(2).mT).chunk(3, dim=-1)
    )
    q, k, terms = position(q, k, shape=(5, 2))
    heads = relpos.attention(q, k, v, terms, scale=1.0)
    want = layer.out_proj(heads.transpose(1, 2).flatten(2)).mT.unflatten(2, (5, 2))
    assert_close(layer(x), want)
    with pytest.raises(ValueError, match="GridAttention: scale must be None or 1, as Continuous"):
        GridAttention(12, 2, position=position, scale=0.5)


def test_dense_is_what_is_added_to_the_scores():
    position = drawn(2, (3, 4), prefix=1, cosine=False)
    q, k, _ = tokens((3, 4), prefix=1)
    assert_close(position.logits(q, k, scale=0.3)[0], position.dense())
    assert (position.dense()[:, 0] == 0).all()


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    for arguments, named in (
        ({"heads": 0}, "heads must be an integer >= 1, got 0"),
        ({"shape": ()}, r"shape must be one size per axis, got \(\)"),
        ({"hidden": 0}, "hidden must be an integer >= 1, got 0"),
        ({"pretrained_shape": (3,)}, r"pretrained_shape must be one size per axis, 2 in all, got"),
        ({"prefix": -1}, "prefix must be an integer >= 0, got -1"),
    ):
        with pytest.raises(ValueError, match=f"ContinuousBias: {named}"):
            ContinuousBias(**{"heads": 2, "shape": (3, 4)} | arguments)
    q, k, _ = tokens((3, 4), h=3)
    with pytest.raises(
        relpos.ShapeError, match=r"ContinuousBias: q must be .* with h=2, i=12, got"
    ):
        drawn(2, (3, 4))(q, k)
    for shape, named in ((None, "k must be .* with j=12"), ((3, 3), "q must be .* with h=2, i=9")):
        with pytest.raises(relpos.ShapeError, match=f"ContinuousBias: {named}, got"):
            drawn(2, (3, 4))(q[:, :2], k[:, :, :9], shape=shape)


def test_repr_tells_the_arguments():
    position = ContinuousBias(2, (3, 4), pretrained_shape=(2, 2), cosine=False, prefix=1)
    told = "heads=2, shape=(3, 4), pretrained_shape=(2, 2), cosine=False, prefix=1"
    assert position.extra_repr() == told
