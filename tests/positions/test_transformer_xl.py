"""`TransformerXL`: the four terms of the paper, computed rows, Conformer's parameter names."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.layers import KeyValueCache, MultiheadAttention
from relpos.positions import TransformerXL
from tests.factories import LENGTHS, judged, normal, qkv, table


def built(head_dim=5, heads=2, **arguments):
    """A position whose `u` and `v` are not zero."""
    torch.manual_seed(0)
    position = TransformerXL(head_dim, heads, **arguments).double()
    with torch.no_grad():
        for n, vectors in enumerate((position.pos_bias_u, position.pos_bias_v)):
            if vectors is not None:
                vectors.copy_(normal(*vectors.shape, seed=n))
    return position


def scores(position, q, k, *, scale, start):
    """Section 3.3 of the paper, pair by pair."""
    weight = position.linear_pos.weight.detach().view(position.heads, position.head_dim, -1).numpy()
    u, v = (x.detach().numpy() for x in (position.pos_bias_u, position.pos_bias_v))
    q, k = q.numpy(), k.numpy()
    out = np.empty((*q.shape[:3], k.shape[2]))
    for b, h, i, j in np.ndindex(out.shape):
        distance = start + i - j
        angles = [distance / 10000 ** (2 * c / position.dim) for c in range(position.dim // 2)]
        pairs = [(math.sin(angle), math.cos(angle)) for angle in angles]
        halves = position.layout == "halves"
        wave = np.array(pairs).T.ravel() if halves else np.array(pairs).ravel()
        row = weight[h] @ wave
        out[b, h, i, j] = scale * ((q[b, h, i] + u[h]) @ k[b, h, j] + (q[b, h, i] + v[h]) @ row)
    return torch.from_numpy(out)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize(("lengths", "start"), [((3, 7), None), ((7, 3), 0), ((2, 5), 1)])
def test_scores_are_the_four_terms_of_the_paper(layout, lengths, start):
    position = built(layout=layout)
    q, k, _ = qkv(*lengths)
    at = lengths[1] - lengths[0] if start is None else start
    want = scores(position, q, k, scale=5**-0.5, start=at)
    got = 5**-0.5 * (q @ k.mT) + position.logits(q, k, query_start=start)
    assert_close(got, want)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_attention_equals_the_double_loop(lengths, causal, biases):
    position = built(causal=causal, biases=biases, dim=8)
    q, k, v = qkv(*lengths)
    moved, same, terms = position(q, k)
    assert same is k
    got = relpos.attention(moved, k, v, terms, causal=causal)
    rows, first = position.rows(1 - lengths[1], lengths[0] - 1), 1 - lengths[1]
    tables, query = {"keys": table(rows, first)}, q
    if biases:
        apart = (position.pos_bias_v - position.pos_bias_u)[:, None]
        tables["bias"] = table((apart * rows).sum(-1) / math.sqrt(5), first)
        query = q + position.pos_bias_u[:, None]
    assert_close(got, judged(query, k, v, causal=causal, **tables))


def test_there_is_a_row_for_each_offset_of_the_call_and_no_more():
    position = built()
    for i, j in LENGTHS:
        q, k, _ = qkv(i, j)
        keys = position(q, k)[2].keys
        assert (keys.first, keys.last) == (1 - j, i - 1)
        keys = built(causal=True)(q, k)[2].keys
        assert (keys.first, keys.last) == (1 - j, 0)


def test_across_rows_follow_the_start_of_the_queries():
    q, k, _ = qkv(3, 7)
    keys = built()(q, k, query_start=20)[2].keys
    assert (keys.first, keys.last) == (-22, -14)


@pytest.mark.parametrize("lengths", [(0, 0), (0, 1), (1, 0), (0, 5), (5, 0)])
def test_without_queries_or_keys_there_is_nothing_to_read(lengths):
    q, k, v = qkv(*lengths)
    moved, _, terms = built()(q, k)
    assert_close(relpos.attention(moved, k, v, terms), torch.zeros_like(q))


def test_long_sequences_are_never_clamped():
    position = built(dim=64)
    rows = position.rows(-3000, 3000)
    assert_close(rows[:, -1:], position.rows(3000, 3000))
    assert not torch.allclose(rows[:, 0], rows[:, 1], rtol=1e-2)


def test_another_scale_is_that_of_the_attention():
    position = built(scale=0.3)
    q, k, _ = qkv(3, 7)
    got = 0.3 * (q @ k.mT) + position.logits(q, k, scale=0.3)
    assert_close(got, scores(position, q, k, scale=0.3, start=4))


def test_the_bias_and_the_queries_have_the_dtype_of_each_other():
    """Parameters of float32 under autocast move no query of half precision out of it."""
    q, k, _ = (x.bfloat16() for x in qkv(3, 7))
    moved, _, _ = built().float()(q, k)
    assert moved.dtype == torch.bfloat16


def test_rows_end_at_the_query_under_a_causal_mask_wherever_queries_start():
    q, k, _ = qkv(3, 7)
    keys = built(causal=True)(q, k, query_start=2)[2].keys
    assert (keys.first, keys.last) == (-4, 0)


def test_grouped_keys_use_the_rows_of_their_query_heads():
    position = built(heads=6)
    q, k, v = qkv(9, 9, h=6, g=2)
    moved, _, terms = position(q, k)
    got = relpos.attention(moved, k, v, terms)
    tables = {name: table(some.rows, -8) for name, some in terms.tables.items()}
    assert_close(got, judged(moved, k, v, **tables))


def test_without_biases_the_queries_pass_through():
    q, k, _ = qkv(3, 7)
    moved, _, terms = built(biases=False)(q, k)
    assert moved is q
    assert terms.bias is None
    assert [name for name, _ in built(biases=False).named_parameters()] == ["linear_pos.weight"]


def test_parameters_have_the_names_of_conformer_checkpoints():
    shapes = {name: tuple(x.shape) for name, x in built(dim=8).state_dict().items()}
    assert shapes == {"linear_pos.weight": (10, 8), "pos_bias_u": (2, 5), "pos_bias_v": (2, 5)}


@pytest.mark.parametrize("cuts", [[33], [1, 32], [20, 1, 1, 11]])
@pytest.mark.parametrize("causal", [False, True])
def test_decoding_in_chunks_equals_one_pass(cuts, causal):
    position = built(4, 4, causal=causal)
    layer = MultiheadAttention(16, 4, position=position, num_kv_heads=2).double()
    x, cache = normal(2, 33, 16), KeyValueCache()
    full, _ = layer(x, x, x, is_causal=True)
    parts = [layer(y, y, y, is_causal=True, cache=cache)[0] for y in x.split(cuts, 1)]
    assert_close(torch.cat(parts, 1), full)


def test_gradients_are_exact_in_every_parameter():
    position = built(3, 2, dim=4)
    q, k, v = (x.requires_grad_() for x in qkv(3, 5, d=3, b=1))
    names = [name for name, _ in position.named_parameters()]

    def outputs(q, k, v, *parameters):
        values = dict(zip(names, parameters, strict=True))
        moved, k, terms = torch.func.functional_call(position, values, (q, k))
        return relpos.attention(moved, k, v, terms)

    leaves = (q, k, v, *position.parameters())
    assert torch.autograd.gradcheck(outputs, leaves, fast_mode=True)
    for grad in torch.autograd.grad(outputs(*leaves).square().sum(), leaves):
        assert grad.abs().sum() > 0


def test_it_starts_with_the_content():
    position = TransformerXL(16, 4)
    assert not position.pos_bias_u.any()
    assert not position.pos_bias_v.any()
    position.linear_pos.weight.data.fill_(7)
    position.reset_parameters()
    assert position.linear_pos.weight.abs().max() < 1


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_agree_and_share_nothing(clone):
    position = built()
    q, k, _ = qkv(3, 7)
    other = clone(position)
    assert_close(other.logits(q, k), position.logits(q, k))
    for mine, others in zip(position.parameters(), other.parameters(), strict=True):
        assert mine.data_ptr() != others.data_ptr()
    other = TransformerXL(5, 2, dtype=torch.float64)
    other.load_state_dict(position.state_dict())
    assert_close(other.logits(q, k), position.logits(q, k))


def test_dtype_and_device_are_taken():
    for parameter in TransformerXL(5, 2, device="meta", dtype=torch.bfloat16).parameters():
        assert parameter.dtype == torch.bfloat16
        assert parameter.is_meta


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_gives_tables_of_its_own_dtype(dtype):
    position = built().to(dtype)
    q, k, v = (x.to(dtype) for x in qkv(3, 7))
    moved, _, terms = position(q, k)
    assert moved.dtype == terms.keys.rows.dtype == terms.bias.rows.dtype == dtype
    assert relpos.attention(moved, k, v, terms).dtype == dtype


def test_autocast_is_near_the_exact_numbers():
    layer = MultiheadAttention(10, 2, position=built().float())
    x = normal(2, 9, 10, dtype=torch.float32)
    exact, _ = layer(x, x, x)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x, x, x)
    assert output.dtype == torch.bfloat16
    assert (output - exact).abs().max() < 4 * torch.finfo(torch.bfloat16).eps


def test_repr_tells_what_is_not_as_usual():
    assert TransformerXL(5, 2).extra_repr() == "head_dim=5, heads=2, dim=10, layout='interleaved'"
    other = TransformerXL(4, 2, causal=True, biases=False, scale=0.25).extra_repr()
    assert other.endswith("layout='interleaved', causal=True, biases=False, scale=0.25")


@pytest.mark.no_typecheck
def test_queries_that_do_not_fit_are_named():
    q, k, _ = qkv(3, 3, d=6)
    with pytest.raises(relpos.ShapeError, match=r"TransformerXL: q must be .* with h=2, d=5, got"):
        TransformerXL(5, 2)(q, k)
    with pytest.raises(relpos.ShapeError, match=r"TransformerXL: q must be .* with h=3, d=6, got"):
        TransformerXL(6, 3)(q, k)
    with pytest.raises(relpos.ShapeError, match=r"TransformerXL: k must be .* with d=6, got"):
        TransformerXL(6, 2)(q, k[..., :5])


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"head_dim": 0}, "head_dim must be an integer >= 1, got 0"),
        ({"heads": 0}, "heads must be an integer >= 1, got 0"),
        ({"dim": 0}, "dim must be an integer >= 1, got 0"),
        ({"layout": "mixed"}, "layout must be 'interleaved' or 'halves', got 'mixed'"),
        ({"scale": 0.0}, "scale must be a positive number, got 0.0"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=f"TransformerXL: {words}"):
        TransformerXL(**{"head_dim": 5, "heads": 2} | arguments)
