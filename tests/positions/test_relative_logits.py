"""`RelativeLogits` (Inkling): its extent, zero beyond it, grouped keys."""

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import RelativeLogits
from tests.factories import LENGTHS, judged, normal, qkv, table


def built(extent=4, heads=2, **arguments):
    torch.manual_seed(0)
    return RelativeLogits(extent, 3, heads, 6, dtype=torch.float64, **arguments)


def relative_queries(position, x):
    """Head after head, rows of the projection three at a time."""
    weights = position.r_proj.weight.detach().split(3)
    return torch.stack([x @ weight.mT for weight in weights], 1)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("extent", [1, 4, 100])
@pytest.mark.parametrize("scale", [None, 0.2])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_the_double_loop(lengths, extent, scale, causal):
    position = built(extent, scale=scale)
    q, k, v = qkv(*lengths)
    x = normal(2, lengths[0], 6, seed=5)
    got = relpos.attention(q, k, v, position(q, k, x)[2], scale=scale, causal=causal)
    # Not scaled, so the judge's relative queries are divided by the scale that it applies.
    r = relative_queries(position, x) / (5**-0.5 if scale is None else scale)
    keys = table(position.keys, 1 - extent, "zero")
    want = judged(q, k, v, keys=keys, q_rel=r.numpy(), scale=scale, causal=causal)
    assert_close(got, want)


def test_far_and_future_keys_get_nothing():
    q, k, _ = qkv(9, 9)
    logits = built(extent=3).logits(q, k, normal(2, 9, 6))
    inside = torch.ones(9, 9).tril().triu(-2).bool()
    assert (logits[..., inside] != 0).all()
    assert (logits[..., ~inside] == 0).all()


def test_the_last_row_belongs_to_the_token_itself():
    position = built(extent=3, heads=1)
    x = normal(1, 5, 6)
    q, k, _ = qkv(5, 5, b=1, h=1)
    got = position.logits(q, k, x)[0, 0].diagonal()
    assert_close(got, (relative_queries(position, x)[0, 0] @ position.keys[0, -1]))


def test_grouped_keys_use_the_relative_queries_of_their_query_heads():
    position = built(heads=6)
    q, k, v = qkv(5, 9, h=6, g=2)
    x = normal(2, 5, 6)
    got = relpos.attention(q, k, v, position(q, k, x)[2])
    r = relative_queries(position, x) * 5**0.5
    want = judged(q, k, v, keys=table(position.keys, -3, "zero"), q_rel=r.numpy())
    assert_close(got, want)


def test_a_logit_starts_with_variance_one_over_the_width():
    position = RelativeLogits(200, 16, heads=4, embed_dim=64)
    q = k = torch.zeros(1, 4, 200, 8)
    logits = position.logits(q, k, normal(1, 200, 64, dtype=torch.float32))
    inside = torch.ones(200, 200).tril().bool()
    assert 0.9 < logits[..., inside].var() * 16 < 1.1


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    q, k, _ = qkv(4, 4)
    with pytest.raises(relpos.ShapeError, match=r"RelativeLogits: x must be .* with e=6, got"):
        built()(q, k, normal(2, 4, 5))
    with pytest.raises(
        relpos.ShapeError, match=r"RelativeLogits: x must be .*64 on cpu as the parameters are, got"
    ):
        built()(q, k, normal(2, 4, 6).float())
    with pytest.raises(relpos.ShapeError, match=r"RelativeLogits: q must be .* with h=3, got"):
        built(heads=3)(q, k, normal(2, 4, 6))


@pytest.mark.parametrize("name", ["extent", "width", "heads", "embed_dim"])
def test_bad_sizes_are_named(name):
    sizes = {"extent": 4, "width": 3, "heads": 2, "embed_dim": 6}
    with pytest.raises(ValueError, match=f"RelativeLogits: {name} must be an integer >= 1, got 0"):
        RelativeLogits(**sizes | {name: 0})


def test_a_bad_scale_is_named():
    with pytest.raises(ValueError, match="RelativeLogits: scale must be a positive number, got -1"):
        built(scale=-1.0)
