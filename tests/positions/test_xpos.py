"""XPos: rotary scores that fade, pair by pair as in the paper, and the range of each dtype."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.positions import Rotary, XPos
from tests.factories import LENGTHS, normal, qkv
from tests.positions.test_rotary import as_complex, from_scores


def scores(q, k, *, start=None, theta=1e4, base=512.0, gamma=0.4, interleaved=True, width=8):
    """Sun et al. 2022, eq. 12: each pair turned, times `z^((i - j) / B)`."""
    group = q.shape[1] // k.shape[1]
    start = k.shape[2] - q.shape[2] if start is None else start
    turned_q, rest_q = as_complex(q.numpy(), width, interleaved)
    turned_k, rest_k = as_complex(k.numpy(), width, interleaved)
    pairs = np.arange(width // 2)
    z = (2 * pairs / width + gamma) / (1 + gamma)
    out = np.empty((*q.shape[:3], k.shape[2]))
    for b, h, i, j in np.ndindex(*out.shape):
        away = start + i - j
        turn = np.exp(1j * away * theta ** (-2 * pairs / width)) * z ** (away / base)
        product = turned_q[b, h, i] * turned_k[b, h // group, j].conj() * turn
        out[b, h, i, j] = product.real.sum() + rest_q[b, h, i] @ rest_k[b, h // group, j]
    return torch.from_numpy(out)


FORMS = [
    {},
    {"base": 16.0, "gamma": 0.1},
    {"interleaved": False, "theta": 50.0},
    {"width": 4},
]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.costly(8)
def test_causal_attention_equals_the_double_loop(lengths, form):
    names = {"base": "scale_base", "width": "rotary_dim"}
    position = XPos(8, **{names.get(name, name): value for name, value in form.items()})
    q, k, v = qkv(*lengths, h=4, g=2, d=8)
    turned_q, turned_k, terms = position(q, k)
    got = relpos.attention(turned_q, turned_k, v, terms, causal=True)
    assert_close(got, from_scores(v, 8**-0.5 * scores(q, k, **form), causal=True))


@pytest.mark.parametrize("start", [0, 3, 20, -20])
def test_positions_follow_the_start_of_the_queries(start):
    q, k, _ = qkv(5, 9, d=8)
    turned_q, turned_k, _ = XPos(8)(q, k, query_start=start)
    assert_close(turned_q @ turned_k.mT, scores(q, k, start=start))


def test_all_but_the_fading_is_rotary():
    q, k, _ = qkv(5, 9, d=8)
    # So slow that nothing fades.
    position = XPos(8, scale_base=1e12)
    for one, other in zip(position(q, k)[:2], Rotary(8, interleaved=True)(q, k)[:2], strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 30594), (torch.bfloat16, 30594), (torch.float16, 5665)]
)
def test_the_longest_text_of_a_dtype_is_finite_and_the_next_is_refused(dtype, most):
    position = XPos(4)
    x = torch.full((1, 1, most, 4), 8.0, dtype=dtype)
    turned_q, turned_k, _ = position(x, x)
    assert turned_q.isfinite().all()
    assert turned_k.isfinite().all()
    # Products with keys ahead, which a mask hides, are the largest: these must be finite too.
    ends = turned_q[:, :, :1].float() @ turned_k[:, :, -1:].float().mT
    assert ends.isfinite().all()
    longer = torch.cat((x, x[:, :, :1]), 2)
    with pytest.raises(
        ValueError, match=rf"XPos: q and k must span at most {most} positions in {dtype}"
    ):
        position(longer, longer)
    XPos(4, scale_base=1024.0)(longer, longer)


@pytest.mark.parametrize("start", [40_000, -40_000])
def test_queries_far_from_the_keys_on_either_side_are_refused(start):
    q, k, _ = (x.float() for x in qkv(5, 9, d=8))
    span = start + 5 if start > 0 else 9 - start
    with pytest.raises(ValueError, match=rf"XPos: q and k must span .* positions .* got {span};"):
        XPos(8)(q, k, query_start=start)


def test_a_long_text_agrees_with_float64_where_it_matters():
    length = 20_000
    q, k = (normal(1, 1, length, 8, seed=seed) for seed in range(2))
    exact_q, exact_k, _ = XPos(8)(q, k)
    single_q, single_k, _ = XPos(8)(q.float(), k.float())
    for near in (slice(0, 9), slice(length - 9, length)):
        got = single_q[:, :, near].double() @ single_k[:, :, near].double().mT
        want = exact_q[:, :, near] @ exact_k[:, :, near].mT
        assert_close(got, want, rtol=0, atol=8 * torch.finfo(torch.float32).eps * 30)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"head_dim": 7}, "rotary_dim must be even and at most head_dim=7, got 7"),
        ({"scale_base": 0}, "scale_base must be a positive number, got 0"),
        ({"gamma": float("inf")}, "gamma must be a positive number, got inf"),
        ({"gamma": True}, "gamma must be a positive number, got True"),
        ({"theta": "x"}, "theta must be a number > 1, got 'x'"),
    ],
)
@pytest.mark.no_typecheck
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises(ValueError, match=f"XPos: {named}"):
        XPos(**{"head_dim": 8} | arguments)


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    q, k, _ = qkv(3, 3, d=8)
    with pytest.raises(relpos.ShapeError, match=r"XPos: k must be .* with d=8, got"):
        XPos(8)(q, k[..., :6])
    with pytest.raises(relpos.ShapeError, match="XPos: k must be floating point of 16"):
        XPos(8)(q, k.long())


def test_there_is_nothing_to_learn_nor_to_save_and_repr_tells_the_arguments():
    position = XPos(8, rotary_dim=4, interleaved=False)
    assert not list(position.parameters())
    assert not position.state_dict()
    told = "head_dim=8, theta=10000, scale_base=512, gamma=0.4, rotary_dim=4, interleaved=False"
    assert position.extra_repr() == told


@pytest.mark.parametrize("size", [{"gamma": 1e300}, {"gamma": 1e300, "scale_base": 1e300}])
def test_with_a_very_large_gamma_nothing_fades(size):
    q = torch.randn(1, 2, 5, 8)
    assert_close(XPos(8, **size)(q, q)[:2], Rotary(8, interleaved=True)(q, q)[:2])


def test_queries_before_the_keys_stay_finite_or_are_refused():
    position = XPos(4)
    x = torch.full((1, 1, 8, 4), 8.0, dtype=torch.float16)
    first = 4 - 5665 // 2
    for turned in position(x, x, query_start=first)[:2]:
        assert turned.isfinite().all()
    with pytest.raises(ValueError, match=rf"XPos: query_start must be at least {first} in torch"):
        position(x, x, query_start=first - 1)
