"""The layer against the formula of the post that names it, written with explicit indices."""

import copy
import pickle
from math import sqrt

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.adapters import RelativeGlobalAttention
from tests.factories import normal


def rival(layer, x):
    """softmax((q k^T + q_i . Er[max_len - 1 - (i - j)]) / sqrt(d)) v over the keys j <= i."""
    b, length, width = x.shape
    d = width // layer.num_heads
    q, k, v = (
        project(x).reshape(b, length, layer.num_heads, d).permute(0, 2, 1, 3)
        for project in (layer.query, layer.key, layer.value)
    )
    outputs = []
    for i in range(length):
        back = [max(layer.max_len - 1 - (i - j), 0) for j in range(i + 1)]
        scores = torch.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, : i + 1])
        scores = scores + torch.einsum("bhd,jd->bhj", q[:, :, i], layer.Er[back])
        weights = (scores / sqrt(d)).softmax(-1)
        outputs.append(torch.einsum("bhj,bhjd->bhd", weights, v[:, :, : i + 1]).reshape(b, -1))
    return torch.stack(outputs, 1)


def built(max_len=33, **arguments):
    torch.manual_seed(0)
    return RelativeGlobalAttention(12, 3, max_len, dtype=torch.float64, **arguments).eval()


@pytest.mark.parametrize("length", [1, 7, 33])
def test_up_to_max_len_the_numbers_are_the_posts(length):
    layer, x = built(), normal(2, length, 12)
    assert_close(layer(x), rival(layer, x))


def test_longer_sequences_clamp_to_the_first_row():
    layer, x = built(max_len=9), normal(2, 33, 12)
    assert_close(layer(x), rival(layer, x))


def test_gradients_are_the_posts():
    layer, x = built(max_len=9), normal(2, 13, 12).requires_grad_()
    tensors = [x, *layer.parameters()]
    got = torch.autograd.grad(layer(x).square().sum(), tensors)
    want = torch.autograd.grad(rival(layer, x).square().sum(), tensors)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


def test_what_comes_later_changes_nothing_before():
    layer, x = built(), normal(2, 33, 12)
    later = x.clone()
    later[:, 20:] = 1e3
    assert_close(layer(later)[:, :20], layer(x)[:, :20])


def test_parameters_have_the_posts_names_and_shapes():
    shapes = {name: tuple(p.shape) for name, p in built().state_dict().items()}
    assert shapes == {
        "Er": (33, 4),
        **{f"{n}.weight": (12, 12) for n in ("key", "value", "query")},
        **{f"{n}.bias": (12,) for n in ("key", "value", "query")},
    }


def test_a_checkpoint_of_the_post_loads_with_its_mask():
    layer, other = built(), torch.nn.ModuleDict({"attention": built()})
    mask = torch.tril(torch.ones(33, 33))[None, None]
    state = layer.state_dict() | {"mask": mask}
    built().load_state_dict(state)
    assert "mask" in state
    other.load_state_dict({f"attention.{name}": value for name, value in state.items()})
    assert torch.equal(other["attention"].Er, layer.Er)


def test_an_unknown_name_is_still_an_error():
    state = built().state_dict() | {"masks": torch.zeros(1)}
    with pytest.raises(RuntimeError, match="masks"):
        built().load_state_dict(state)


def test_dropout_acts_on_the_output_in_training():
    layer = built(dropout=0.5).train()
    x = normal(2, 33, 12)
    torch.manual_seed(0)
    got = layer(x)
    kept = got != 0
    assert 0.4 < kept.double().mean() < 0.6
    assert_close(got[kept], 2 * layer.eval()(x)[kept])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_agree_and_load(clone):
    layer, x = built(), normal(2, 7, 12)
    other = clone(layer)
    assert_close(other(x), layer(x))
    other.load_state_dict(layer.state_dict() | {"mask": torch.zeros(1)})


@pytest.mark.no_typecheck
def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="d_model must be a multiple of num_heads=5, got 12"):
        RelativeGlobalAttention(12, 5)
    with pytest.raises(ValueError, match="max_len must be an integer >= 1, got 0"):
        RelativeGlobalAttention(12, 3, 0)
    with pytest.raises(relpos.ShapeError, match=r"x must be \(b, i, e\) with e=12, got \(2, 3\)"):
        built()(torch.zeros(2, 3))
