"""Rotary positions on grids: the double loop over coordinates, pooled queries, class tokens."""

from math import prod

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import relpos
from relpos.layers import GridAttention
from relpos.positions import AxialRotary, Rotary
from tests.factories import normal

SHAPES = [((5, 7), 8), ((1, 9), 4), ((6,), 6), ((2, 3, 4), 12)]


def tokens(count, width, *, h=4, g=2):
    return normal(2, h, count, width), normal(2, g, count, width, seed=1)


def coordinates(shape, steps=None):
    """Of each token, in row-major order."""
    steps = steps or (1,) * len(shape)
    found = [np.unravel_index(n, shape) for n in range(prod(shape))]
    return [[int(y) * step for y, step in zip(at, steps, strict=True)] for at in found]


def products(q, k, at_q, at_k, *, interleaved=False, theta=1e4):
    """Each pair of numbers as a complex one, turned by the coordinates' differences."""
    width = q.shape[3]
    axes, half = len(at_k[0]), width // 2
    per_axis = half // axes
    q, k = q.numpy(), k.numpy().repeat(q.shape[1] // k.shape[1], 1)
    out = np.zeros((*q.shape[:3], k.shape[2]))
    for i, j, c in np.ndindex(*out.shape[2:], half):
        axis, n = divmod(c, per_axis)
        offset = at_k[j][axis] - at_q[i][axis]
        turn = np.exp(1j * offset * theta ** (-n / per_axis))
        a, b = (2 * c, 2 * c + 1) if interleaved else (c, c + half)
        one = q[:, :, i, a] + 1j * q[:, :, i, b]
        other = k[:, :, j, a] + 1j * k[:, :, j, b]
        out[:, :, i, j] += (one.conj() * other * turn).real
    return torch.from_numpy(out)


def found(position, q, k, **arguments):
    turned_q, turned_k, terms = position(q, k, **arguments)
    assert terms.tensors == []
    return turned_q @ turned_k.repeat_interleave(2, 1).mT


@pytest.mark.parametrize(("shape", "width"), SHAPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_equal_the_double_loop(shape, width, interleaved):
    q, k = tokens(prod(shape), width)
    at = coordinates(shape)
    position = AxialRotary(width, shape, 100.0, interleaved=interleaved)
    want = products(q, k, at, at, interleaved=interleaved, theta=100.0)
    assert_close(found(position, q, k), want)


def test_another_grid_has_its_own_coordinates():
    q, k = tokens(12, 8)
    at = coordinates((3, 4))
    got = found(AxialRotary(8, (5, 7)), q, k, shape=(3, 4))
    assert_close(got, products(q, k, at, at))


@pytest.mark.parametrize(("pooled", "steps"), [((3, 2), (2, 3)), ((4, 5), (1.5, 1.2))])
def test_pooled_queries_count_steps_of_the_finer_grid(pooled, steps):
    q, _ = tokens(prod(pooled), 8)
    _, k = tokens(36, 8)
    want = products(q, k, coordinates(pooled, steps), coordinates((6, 6)))
    position = AxialRotary(8, (6, 6), query_shape=pooled)
    assert_close(found(position, q, k), want)
    other = AxialRotary(8, (2, 2))
    assert_close(found(other, q, k, shape=(6, 6), query_shape=pooled), want)


def test_class_tokens_are_not_turned():
    q, k = tokens(14, 8)
    turned_q, turned_k, _ = AxialRotary(8, (3, 4), prefix=2)(q, k)
    assert torch.equal(turned_q[:, :, :2], q[:, :, :2])
    assert torch.equal(turned_k[:, :, :2], k[:, :, :2])
    want = AxialRotary(8, (3, 4))(q[:, :, 2:], k[:, :, 2:])
    assert_close(turned_q[:, :, 2:], want[0])
    assert_close(turned_k[:, :, 2:], want[1])


def test_a_grid_of_one_axis_is_a_line():
    q, k = tokens(9, 8)
    for one, other in zip(AxialRotary(8, (9,))(q, k)[:2], Rotary(8)(q, k)[:2], strict=True):
        assert_close(one, other)


def test_scores_depend_on_offsets_alone():
    """The same vector everywhere: pairs of the same offset have the same score."""
    q = normal(1, 1, 1, 8).expand(1, 1, 12, 8)
    scores = found(AxialRotary(8, (3, 4)), q, normal(1, 1, 1, 8, seed=1).expand_as(q))[0, 0]
    assert_close(scores[0, 5], scores[6, 11])
    assert_close(scores[7, 2], scores[9, 4])


@pytest.mark.parametrize("pool", [None, nn.AvgPool2d(2, ceil_mode=True)])
def test_a_layer_on_a_map_hands_over_the_grids(pool):
    torch.manual_seed(0)
    position = AxialRotary(8, (2, 2))
    layer = GridAttention(16, 2, position=position, query_pool=pool, projection=False).double()
    x = normal(2, 16, 5, 7)
    q, k, v = (
        part.unflatten(-1, (2, 8)).transpose(1, 2)
        for part in layer.in_proj(x.flatten(2).mT).chunk(3, dim=-1)
    )
    grid = (5, 7)
    if pool is not None:
        grid = (3, 4)
        q = pool(q.mT.flatten(1, 2).unflatten(2, (5, 7))).flatten(2).unflatten(1, (2, 8)).mT
    q, k, _ = position(q, k, shape=(5, 7), query_shape=grid)
    want = relpos.attention(q, k, v).transpose(1, 2).flatten(2).mT.unflatten(2, grid)
    assert_close(layer(x), want)


def test_gradients_are_exact():
    q, k = (x.requires_grad_() for x in tokens(6, 8))

    def outputs(q, k):
        return AxialRotary(8, (2, 3))(q, k)[:2]

    assert torch.autograd.gradcheck(outputs, (q, k), fast_mode=True)


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"AxialRotary: head_dim must be a multiple of 4, .* 6"):
        AxialRotary(6, (3, 4))
    with pytest.raises(ValueError, match="AxialRotary: shape must be one size per axis, got 3"):
        AxialRotary(8, 3)
    with pytest.raises(ValueError, match="AxialRotary: theta must be a number > 1, got 0"):
        AxialRotary(8, (3, 4), 0)
    position, (q, k) = AxialRotary(8, (3, 4)), tokens(11, 8)
    with pytest.raises(relpos.ShapeError, match=r"AxialRotary: q must be .* with i=12, d=8, got"):
        position(q, k)
    with pytest.raises(ValueError, match="AxialRotary: shape must be one size per axis, 2 in all"):
        position(q, k, shape=(11,))


def test_repr_tells_the_arguments():
    assert repr(AxialRotary(8, (3, 4))) == "AxialRotary(head_dim=8, shape=(3, 4), theta=10000)"
    position = AxialRotary(8, (6, 6), 100.0, interleaved=True, query_shape=(3, 3), prefix=1)
    told = "theta=100, interleaved=True, query_shape=(3, 3), prefix=1"
    assert position.extra_repr() == f"head_dim=8, shape=(6, 6), {told}"
