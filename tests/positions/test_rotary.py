"""Rotary positions: the paper's complex numbers, far positions, caches and documents."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.layers import DecoderBlock, EncoderBlock, KeyValueCache, MultiheadAttention
from relpos.positions import Rotary
from tests.factories import LENGTHS, judged, normal, qkv

D = torch.float64


def as_complex(x, width, interleaved):
    """The first `width` numbers of `x` as complex ones, and the others."""
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        return turned[..., ::2] + 1j * turned[..., 1::2], rest
    half = width // 2
    return turned[..., :half] + 1j * turned[..., half:], rest


def scores(q, k, inv_freq, *, interleaved=False, start=None, factor=1.0):
    """`Re(q_i conj(k_j) e^(i (m - n) w))`, Su et al. 2021, eq. 12, and what is not turned."""
    group = q.shape[1] // k.shape[1]
    q, k = q.detach().double().numpy(), k.detach().double().numpy()
    start = k.shape[2] - q.shape[2] if start is None else start
    inv_freq = np.asarray(inv_freq)
    turned_q, rest_q = as_complex(q, 2 * len(inv_freq), interleaved)
    turned_k, rest_k = as_complex(k, 2 * len(inv_freq), interleaved)
    out = np.empty((*q.shape[:3], k.shape[2]))
    for b, h, i, j in np.ndindex(*out.shape):
        turn = np.exp(1j * (start + i - j) * inv_freq)
        product = turned_q[b, h, i] * turned_k[b, h // group, j].conj() * turn
        out[b, h, i, j] = factor**2 * product.real.sum()
        out[b, h, i, j] += rest_q[b, h, i] @ rest_k[b, h // group, j]
    return torch.from_numpy(out)


def from_scores(v, scores, **arguments):
    """Attention with these scores and no others."""
    nothing = [torch.zeros(*x, 1, dtype=D) for x in (scores.shape[:3], v.shape[:3])]
    return judged(*nothing, v, mask=scores.numpy(), **arguments)


def plain(theta, width):
    return [theta ** (-2 * c / width) for c in range(width // 2)]


@pytest.mark.parametrize("lengths", [*LENGTHS, (7, 3)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [8, 4])
def test_attention_equals_the_double_loop(lengths, interleaved, width):
    position = Rotary(8, 50.0, interleaved=interleaved, rotary_dim=width)
    q, k, v = qkv(*lengths, h=4, g=2, d=8)
    turned_q, turned_k, terms = position(q, k)
    assert terms.tensors == []
    want = 8**-0.5 * scores(q, k, plain(50.0, width), interleaved=interleaved)
    assert_close(relpos.attention(turned_q, turned_k, v, terms), from_scores(v, want))
    causal = relpos.attention(turned_q, turned_k, v, terms, causal=True)
    assert_close(causal, from_scores(v, want, causal=True))


@pytest.mark.parametrize("start", [0, 3, 20])
def test_angles_follow_the_start_of_the_queries(start):
    q, k, _ = qkv(5, 9, d=8)
    turned_q, turned_k, _ = Rotary(8)(q, k, query_start=start)
    assert_close(turned_q @ turned_k.mT, scores(q, k, plain(1e4, 8), start=start))


@pytest.mark.parametrize("lengths", [(0, 0), (0, 5), (5, 0)])
def test_without_queries_or_keys_there_is_nothing_to_turn(lengths):
    q, k, v = qkv(*lengths, d=8)
    turned_q, turned_k, terms = Rotary(8)(q, k)
    assert_close(relpos.attention(turned_q, turned_k, v, terms), torch.zeros_like(q))


def test_both_layouts_are_the_same_but_for_the_order_of_the_numbers():
    q, k, _ = qkv(5, 9, d=8)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    halves = Rotary(8)(q[..., order], k[..., order])
    interleaved = Rotary(8, interleaved=True)(q, k)
    for one, other in zip(halves[:2], interleaved[:2], strict=True):
        assert_close(one, other[..., order])


@pytest.mark.parametrize("far", [100_000, 10_000_000, 2**31 + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_far_positions_lose_nothing_but_the_rounding_of_the_result(dtype, far):
    """Angles in float32 would be off by 0.004 at position 100000."""
    q, k = torch.ones(1, 1, 1, 64, dtype=dtype), torch.ones(1, 1, 1, 64, dtype=dtype)
    turned, _, _ = Rotary(64)(q, k, query_start=far)
    angles = far * np.array(plain(1e4, 64))
    want = np.concatenate((np.cos(angles) - np.sin(angles), np.cos(angles) + np.sin(angles)))
    error = (turned[0, 0, 0].double() - torch.from_numpy(want)).abs().max()
    assert turned.dtype == dtype
    assert error <= torch.finfo(dtype).eps + 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loses_nothing_of_the_frequencies(dtype):
    position = Rotary(64)
    assert torch.equal(position.to(dtype).inv_freq(), Rotary(64).inv_freq())
    q = normal(1, 2, 33, 64, dtype=dtype)
    half, _, _ = position(q, q)
    exact, _, _ = position(q.double(), q.double())
    assert ((half - exact).abs() <= torch.finfo(dtype).eps * exact.abs().clamp(min=1e-3)).all()


def test_frequencies_are_the_papers():
    assert_close(Rotary(64).inv_freq(), torch.tensor(plain(1e4, 64), dtype=D))
    assert_close(Rotary(64, 5e5).inv_freq(), torch.tensor(plain(5e5, 64), dtype=D))


def test_there_is_nothing_to_learn_nor_to_save():
    position = Rotary(8)
    assert not list(position.parameters())
    assert not position.state_dict()


def block(position):
    torch.manual_seed(0)
    parts = [MultiheadAttention(16, 4, num_kv_heads=2, position=position()) for _ in range(2)]
    return DecoderBlock(parts[0], cross=parts[1], hidden=16).double().eval()


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("cuts", [(1,), (5, 6, 20), tuple(range(1, 33))])
@pytest.mark.parametrize("scaling", [None, YARN])
def test_a_decoder_block_in_chunks_equals_one_pass(cuts, scaling):
    """The caches hold keys that are not turned yet."""
    layer = block(lambda: Rotary(4, scaling=scaling))
    x, memory = normal(2, 33, 16), normal(2, 9, 16, seed=1)
    want = layer(x, memory=memory)
    cache, memory_cache, parts = KeyValueCache(), KeyValueCache(), []
    for part in x.tensor_split(list(cuts), dim=1):
        parts.append(layer(part, cache, memory=memory, memory_cache=memory_cache))
    assert_close(torch.cat(parts, 1), want)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents_are_as_each_alone(causal):
    attention = MultiheadAttention(16, 4, position=Rotary(4))
    layer = (DecoderBlock if causal else EncoderBlock)(attention).double()
    x, lengths = normal(1, 33, 16), (1, 13, 19)
    documents = relpos.document_ids(torch.tensor([0, 1, 14, 33]), 33)
    want = torch.cat([layer(one) for one in x.split(lengths, dim=1)], 1)
    assert_close(layer(x, documents=documents), want)


def test_packed_documents_are_decoded_in_chunks():
    layer = DecoderBlock(MultiheadAttention(16, 4, position=Rotary(4))).double()
    x = normal(1, 33, 16)
    documents = relpos.document_ids(torch.tensor([0, 14, 33]), 33)
    cache, parts, end = KeyValueCache(), [], 0
    for part in x.split((9, 1, 10, 13), dim=1):
        end += part.shape[1]
        parts.append(layer(part, cache, documents=documents[:, :end]))
    assert_close(torch.cat(parts, 1), layer(x, documents=documents))


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}


def test_all_tokens_have_the_dynamic_frequencies_of_the_call():
    position = Rotary(8, scaling=DYNAMIC)
    for j in (5, 16, 33):
        q, k, _ = qkv(3, j, d=8)
        theta = 1e4 * max(2 * j / 16 - 1, 1) ** (8 / 6)
        turned_q, turned_k, _ = position(q, k)
        assert_close(turned_q @ turned_k.mT, scores(q, k, plain(theta, 8)))


def test_a_dynamic_step_of_decoding_is_the_end_of_one_pass_of_that_length():
    """Not of a longer one, whose frequencies are others; its cached keys are turned anew."""
    layer = MultiheadAttention(16, 2, position=Rotary(8, scaling=DYNAMIC)).double().eval()
    x, cache = normal(2, 33, 16), KeyValueCache()
    for end, part in ((12, x[:, :12]), (20, x[:, 12:20]), (33, x[:, 20:])):
        got = layer(part, part, part, is_causal=True, cache=cache)[0]
        y = x[:, :end]
        assert_close(got, layer(y, y, y, is_causal=True)[0][:, end - part.shape[1] :])


def test_a_dictionary_may_have_base_and_width():
    said = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    position = Rotary(8, scaling=said)
    assert (position.theta, position.rotary_dim) == (5e5, 4)
    assert (Rotary(8, 5e5, rotary_dim=4, scaling=said).rotary_dim) == 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"head_dim": 0}, "head_dim must be an integer >= 1, got 0"),
        ({"head_dim": 7}, "rotary_dim must be even and at most head_dim=7, got 7"),
        ({"rotary_dim": 10}, "rotary_dim must be even and at most head_dim=8, got 10"),
        ({"rotary_dim": 3}, "rotary_dim must be even and at most head_dim=8, got 3"),
        ({"theta": 1.0}, "theta must be a number > 1, got 1.0"),
        ({"theta": float("nan")}, "theta must be a number > 1, got nan"),
        ({"theta": 5.0, "scaling": {"rope_theta": 7.0}}, r"theta must be None or 7.0.* got 5.0"),
        (
            {"max_position_embeddings": -5},
            "max_position_embeddings must be an integer >= 1, got -5",
        ),
        (
            {"max_position_embeddings": 0, "scaling": {"rope_type": "linear", "factor": 2.0}},
            "max_position_embeddings must be an integer >= 1, got 0",
        ),
        ({"scaling": {"partial_rotary_factor": 0.4}}, "rotary_dim must be even .* got 3"),
        ({"scaling": {"partial_rotary_factor": 0.1}}, "rotary_dim must be an integer >= 1, got 0"),
        (
            {"rotary_dim": 2, "scaling": DYNAMIC},
            "rotary_dim must be at least 4 with dynamic scaling, got 2",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises(ValueError, match=f"Rotary: {named}"):
        Rotary(**{"head_dim": 8} | arguments)


@pytest.mark.no_typecheck
def test_what_does_not_fit_is_named():
    q, k, _ = qkv(3, 3, d=8)
    with pytest.raises(relpos.ShapeError, match=r"Rotary: q must be \(b, h, i, d\) with d=6, got"):
        Rotary(6)(q, k)
    with pytest.raises(relpos.ShapeError, match=r"Rotary: k must be \(b, g, j, d\) with d=8, got"):
        Rotary(8)(q, k[..., :6])
    with pytest.raises(relpos.ShapeError, match="Rotary: q must be floating point of 16"):
        Rotary(8)(q.long(), k)


def test_repr_tells_the_arguments():
    assert repr(Rotary(8)) == "Rotary(head_dim=8, theta=10000)"
    position = Rotary(8, 5e5, rotary_dim=4, interleaved=True, scaling=YARN)
    told = "head_dim=8, theta=500000, rotary_dim=4, interleaved=True, rope_type='yarn'"
    assert position.extra_repr() == told


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "config must have head_dim, or hidden_size and num_attention_heads, got Simple"),
        ({"hidden_size": 32}, "config must have head_dim, .* with 32 and None"),
        ({"hidden_size": 32, "num_attention_heads": 0}, "config must have head_dim, .* 32 and 0"),
        (
            {"head_dim": 8, "rope_scaling": "yarn"},
            "rope_parameters .* dictionary, got 'y",
        ),
        ({"head_dim": 8, "rope_parameters": [1]}, r"rope_parameters .* dictionary, got \[1\]"),
    ],
)
def test_a_config_without_widths_or_with_other_parameters_is_named(fields, named):
    with pytest.raises(TypeError, match=f"Rotary.from_config: {named}"):
        Rotary.from_config(SimpleNamespace(**fields))


def test_a_config_whose_longest_text_is_no_length_is_named():
    config = SimpleNamespace(head_dim=8, max_position_embeddings=-1)
    with pytest.raises(ValueError, match=r"Rotary: max_position_embeddings must be .* got -1"):
        Rotary.from_config(config)
