"""Neighbourhood attention under NATTEN's names, beside NATTEN itself and written out."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from relpos import ShapeError
from relpos.adapters import (
    NeighborhoodAttention1D,
    NeighborhoodAttention2D,
    NeighborhoodAttention3D,
    neighborhood_attention,
)
from tests.apart import import_apart
from tests.factories import normal

MODULES = {1: NeighborhoodAttention1D, 2: NeighborhoodAttention2D, 3: NeighborhoodAttention3D}

# By grid, sizes, strides, dilations and which axes are causal.
SETTINGS = [
    ((13,), (3,), (1,), (1,), (False,)),
    ((13,), (4,), (3,), (1,), (False,)),
    ((37,), (5,), (2,), (4,), (True,)),
    ((37,), (6,), (1,), (5,), (False,)),
    ((6, 9), (3, 5), (1, 1), (1, 1), (False, False)),
    ((9, 12), (4, 5), (2, 1), (2, 2), (False, True)),
    ((11, 13), (3, 4), (1, 3), (3, 2), (False, False)),
    ((14, 14), (7, 7), (7, 7), (2, 1), (False, False)),
    ((5, 6, 7), (2, 3, 3), (1, 1, 1), (1, 2, 2), (True, False, False)),
]


def of_natten(x: Tensor, *settings: tuple) -> Tensor:
    """What NATTEN computes, on the CPU by FlexAttention, which has no backward there."""
    functional = import_apart("natten.functional")
    attend = {4: functional.na1d, 5: functional.na2d, 6: functional.na3d}[x.ndim - 1]
    sizes, strides, dilations, causal = settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of not being compiled
        return attend(
            *x, kernel_size=sizes, stride=strides, dilation=dilations, is_causal=causal,
            backend="flex-fna",
        )  # fmt: skip


@pytest.mark.parametrize(("grid", "settings"), [(grid, rest) for grid, *rest in SETTINGS])
@pytest.mark.costly(5)
def test_outputs_are_those_of_natten(grid: tuple[int, ...], settings: list[tuple]):
    x = normal(3, 2, *grid, 3, 16, dtype=torch.float32)
    sizes, strides, dilations, causal = settings
    found = neighborhood_attention(*x, sizes, stride=strides, dilation=dilations, is_causal=causal)
    assert_close(found, of_natten(x, *settings), rtol=1e-5, atol=1e-5)


def neighbours(at: int, length: int, size: int, dilation: int) -> list[int]:
    """Of a token: with as many on either side as there are, in steps of the dilation."""
    group = range(at % dilation, length, dilation)
    number = at // dilation
    first = min(max(number - size // 2, 0), max(len(group) - size, 0))
    return list(group[first : first + size])


def written_out(
    q: Tensor, k: Tensor, v: Tensor, sizes: tuple[int, ...], dilations: tuple[int, ...], rpb: Tensor
) -> Tensor:
    """Hassani et al. 2023, equations 2 and 3, token by token; heads behind the tokens."""
    grid, rows = q.shape[1:-2], []
    for token in product(*map(range, grid)):
        near = [
            neighbours(at, n, size, steps)
            for at, n, size, steps in zip(token, grid, sizes, dilations, strict=True)
        ]
        scores, values = [], []
        for other in product(*near):
            entry = [
                (there - here) // steps + size - 1
                for here, there, size, steps in zip(token, other, sizes, dilations, strict=True)
            ]
            pair = (q[:, *token] * k[:, *other]).sum(-1) / q.shape[-1] ** 0.5
            scores.append(pair + rpb[:, *entry])
            values.append(v[:, *other])
        weights = torch.stack(scores).softmax(0)
        rows.append((weights[..., None] * torch.stack(values)).sum(0))
    return torch.stack(rows, 1).unflatten(1, grid)


@pytest.mark.parametrize(
    ("grid", "sizes", "dilations"),
    [
        ((9,), (3,), (1,)),
        ((11,), (4,), (2,)),
        ((5, 6), (3, 5), (1, 1)),
        ((7, 5), (3, 2), (2, 2)),
        ((2, 6), (3, 3), (1, 4)),  # smaller than a neighbourhood
        ((3, 2, 5), (3, 1, 2), (1, 1, 2)),
    ],
)
def test_biases_and_gradients_are_those_of_the_formula(
    grid: tuple[int, ...], sizes: tuple[int, ...], dilations: tuple[int, ...]
):
    q, k, v = normal(3, 2, *grid, 2, 4).requires_grad_().unbind(0)
    rpb = normal(2, *(2 * size - 1 for size in sizes), seed=1).requires_grad_()
    want = written_out(q, k, v, sizes, dilations, rpb)
    found = neighborhood_attention(q, k, v, sizes, dilation=dilations, rpb=rpb)
    assert_close(found, want)
    weights = normal(*found.shape, seed=2)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), [q, k, v, rpb]),
        torch.autograd.grad((want * weights).sum(), [q, k, v, rpb]),
        strict=True,
    ):
        assert_close(one, other)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_modules_read_natten_s_state_dicts(axes: int):
    theirs = getattr(import_apart("natten"), f"NeighborhoodAttention{axes}D")
    settings: dict[str, Any] = {"kernel_size": 3, "dilation": 2, "stride": 2}
    original = theirs(16, 2, **settings)
    ours = MODULES[axes](16, 2, **settings, rel_pos_bias=False)
    ours.load_state_dict(original.state_dict())
    x = normal(2, *[7, 6, 6][:axes], 16, dtype=torch.float32)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        assert_close(ours(x), original(x), rtol=1e-5, atol=1e-5)


def test_modules_have_the_biases_of_natten_before_0_20():
    """Their names and sizes there: `qkv`, `rpb`, `proj`."""
    layer = NeighborhoodAttention2D(12, 3, kernel_size=(3, 5)).double()
    shapes = {name: tuple(x.shape) for name, x in layer.state_dict().items()}
    assert shapes == {
        "rpb": (3, 5, 9), "qkv.weight": (36, 12), "qkv.bias": (36,), "proj.weight": (12, 12),
        "proj.bias": (12,),
    }  # fmt: skip
    x = normal(2, 5, 6, 12)
    q, k, v = layer.qkv(x).unflatten(-1, (3, 3, 4)).unbind(-3)
    want = layer.proj(written_out(q, k, v, (3, 5), (1, 1), layer.rpb).flatten(-2))
    assert_close(layer(x), want)
    assert layer.rpb.abs().max() > 0
    layer.rpb.data.zero_()
    assert (layer(x) - want).abs().max() > 1e-4


def test_weights_are_dropped_in_training_alone():
    layer = NeighborhoodAttention1D(8, 2, kernel_size=5, attn_drop=0.5)
    x = normal(1, 20, 8, dtype=torch.float32)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_takes_the_biases_of_its_layer(dtype: torch.dtype):
    layer, x = NeighborhoodAttention2D(8, 2, kernel_size=3), torch.randn(2, 5, 6, 8)
    with torch.autocast("cpu", dtype):
        y = layer(x)
    assert y.dtype == dtype
    assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)
    y.float().square().sum().backward()
    assert layer.rpb is not None
    assert layer.rpb.grad is not None
    assert layer.rpb.grad.dtype == torch.float32


def test_more_steps_than_tokens_make_each_token_a_group():
    x = normal(1, 5, 6, 2, 4)
    for dilation in (6, 2**50):
        assert_close(neighborhood_attention(x, x, x, 3, 1, dilation), x)


def test_no_maps_give_none():
    x = torch.zeros(0, 5, 6, 8)
    for dilation in (None, 2, (4, 1)):
        layer = NeighborhoodAttention2D(8, 2, kernel_size=3, dilation=dilation)
        assert layer(x).shape == x.shape


def test_heads_may_share_keys():
    q, k, v = normal(1, 6, 6, 4, 8), normal(1, 6, 6, 2, 8, seed=1), normal(1, 6, 6, 2, 8, seed=2)
    found = neighborhood_attention(q, k, v, 3, dilation=2)
    whole = (x.repeat_interleave(2, -2) for x in (k, v))
    assert_close(found, neighborhood_attention(q, *whole, 3, dilation=2))


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kernel_size": (3,)}, ValueError, r"kernel_size must be one, or one for each of 2 axes"),
        ({"kernel_size": 0}, ValueError, "kernel_size must be an integer >= 1, got 0"),
        ({"kernel_size": "33"}, ValueError, "kernel_size must be an integer >= 1, got '33'"),
        ({"dilation": (1, 0)}, ValueError, r"dilation\[1\] must be an integer >= 1, got 0"),
        ({"scale": "x"}, ValueError, "neighborhood_attention: scale must be a finite number"),
        ({"dropout": 2}, ValueError, "neighborhood_attention: dropout must be in 0 <= dropout < 1"),
        ({"stride": (1, 4)}, ValueError, r"stride must be at most kernel_size=\(3, 3\), got"),
        ({"query": torch.zeros(1, 0, 6, 2, 4)}, ShapeError, "query must be .* none of them empty"),
        ({"key": torch.zeros(1, 4, 6, 2, 5)}, ShapeError, "key must be .*d=4.*, got"),
        ({"value": torch.zeros(1, 4, 6, 1, 4)}, ShapeError, "value must be .*g=2.*, got"),
        ({"key": torch.zeros(1, 4, 6, 3, 4), "value": torch.zeros(1, 4, 6, 3, 4)}, ShapeError,
         "key must have a divisor of h=2 heads, got 3"),
        ({"key": torch.zeros(1, 4, 6, 2, 4).half()}, ShapeError, "key must be torch.float32"),
        ({"is_causal": 1}, TypeError, "is_causal must be True or False, got 1"),
        ({"rpb": torch.zeros(2, 5, 4)}, ShapeError, r"rpb must be \(h, r0, r1\) with .*r1=5"),
        ({"rpb": torch.zeros(2, 5, 5).double()}, ShapeError, "rpb must be torch.float32"),
        ({"key": torch.zeros(1, 4, 5, 2, 4)}, ShapeError, "key must be .*n1=6.*, got"),
        ({"query": torch.zeros(1, 2, 4)}, ShapeError, r"query must be \(b, \*grid, h, d\)"),
        ({"query": [1]}, TypeError, "query must be a tensor, got list"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(changes: dict[str, Any], error: type[Exception], message: str):
    x = torch.zeros(1, 4, 6, 2, 4)
    given = {"query": x, "key": x, "value": x, "kernel_size": 3} | changes
    with pytest.raises(error, match=message):
        neighborhood_attention(**given)


@pytest.mark.no_typecheck
def test_modules_name_wrong_arguments():
    with pytest.raises(ValueError, match="2D: embed_dim must be a multiple of num_heads=3, got 10"):
        NeighborhoodAttention2D(10, 3, 3)
    with pytest.raises(ValueError, match=r"1D: stride must be at most kernel_size=\(3,\), got"):
        NeighborhoodAttention1D(9, 3, 3, stride=4)
    with pytest.raises(ValueError, match="2D: qk_scale must be a finite number or None, got 'x'"):
        NeighborhoodAttention2D(9, 3, 3, qk_scale="x")
    with pytest.raises(TypeError, match="2D: rel_pos_bias must be True or False, got 1"):
        NeighborhoodAttention2D(9, 3, 3, rel_pos_bias=1)
    with pytest.raises(ValueError, match="3D: kernel_size must be one, or one for each of 3 axes"):
        NeighborhoodAttention3D(9, 3, (3, 3))
    layer = NeighborhoodAttention2D(8, 2, 3)
    for wrong in (torch.zeros(1, 5, 8), torch.zeros(1, 5, 5, 7), torch.zeros(1, 5, 5, 5, 8)):
        with pytest.raises(ShapeError, match=r"x must be \(b, \*grid, e\) with 2 axes"):
            layer(wrong)
    assert "kernel_size=(3, 3), stride=(1, 1)" in repr(layer)
