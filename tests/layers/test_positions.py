"""The layer with positions: the double loop's numbers, and the same ones from a cache."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from relpos import Terms
from relpos.adapters import RelativeGlobalAttention
from relpos.layers import KeyValueCache, MultiheadAttention
from relpos.positions import Bidirectional, Huang, Shaw, TransformerXL
from tests.factories import judged, normal, table

POSITIONS = {
    "none": lambda: None,
    "shaw": lambda: Shaw(4, 3),
    "shaw per head": lambda: Shaw(4, (5, 0), 4),
    "shaw zero": lambda: Shaw(4, 3, 4, beyond="zero"),
    "huang": lambda: Huang(4, 7),
    "huang per head": lambda: Huang(4, 100, 4),
    "bidirectional": lambda: Bidirectional(4, 7, 4),
}


def layer_with(name, **arguments):
    torch.manual_seed(0)
    return layer_of(POSITIONS[name](), **arguments)


def layer_of(position, **arguments):
    return MultiheadAttention(16, 4, position=position, **arguments).double().eval()


def heads_of(layer, x):
    """Queries, keys and values of each head, from the packed weights row by row."""
    projected = x @ layer.in_proj_weight.mT + layer.in_proj_bias
    groups = layer.num_kv_heads
    q, k, v = projected.split([16, 4 * groups, 4 * groups], -1)
    return [part.reshape(*x.shape[:2], -1, 4).transpose(1, 2) for part in (q, k, v)]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 33])
@pytest.mark.parametrize("name", POSITIONS)
def test_the_layer_equals_the_double_loop(name, length, groups):
    layer = layer_with(name, num_kv_heads=groups)
    x = normal(2, length, 16)
    tables = {}
    if layer.position is not None:
        first, beyond = layer.position.first, layer.position.beyond
        tables = {
            part: table(rows, first, beyond) for part, rows in layer.position.named_parameters()
        }
    heads = judged(*heads_of(layer, x), causal=True, **tables)
    want = layer.out_proj(heads.transpose(1, 2).reshape(2, length, 16))
    assert_close(layer(x, x, x, is_causal=True)[0], want)


@pytest.mark.parametrize("name", POSITIONS)
def test_the_weights_contain_the_relative_terms(name):
    layer = layer_with(name)
    x = normal(2, 9, 16)
    _, weights = layer(x, x, x, average_attn_weights=False)
    q, k, _ = heads_of(layer, x)
    tables = {}
    if layer.position is not None:
        tables["keys"] = table(layer.position.keys, layer.position.first, layer.position.beyond)
    # With the identity as values, the output is the weights.
    identity = torch.eye(9, dtype=torch.float64).expand(2, 4, 9, 9)
    assert_close(weights, judged(q, k, identity, **tables))


@pytest.mark.parametrize("name", POSITIONS)
@given(cuts=st.sets(st.integers(1, 32), max_size=6))
@settings(max_examples=8, deadline=None)
def test_decoding_in_chunks_equals_one_pass(name, cuts):
    layer = layer_with(name, num_kv_heads=2)
    x = normal(2, 33, 16)
    full, _ = layer(x, x, x, is_causal=True)

    def step(y, cache):
        return layer(y, y, y, need_weights=False, is_causal=True, cache=cache)[0]

    assert_close(decoded(step, x, cuts), full)


@given(cuts=st.sets(st.integers(1, 32), max_size=6))
@settings(max_examples=8, deadline=None)
def test_relative_global_attention_in_chunks_equals_one_pass(cuts):
    torch.manual_seed(0)
    layer = RelativeGlobalAttention(16, 4, max_len=7).double().eval()
    x = normal(2, 33, 16)
    assert_close(decoded(lambda y, c: layer(y, cache=c), x, cuts), layer(x))


def decoded(step, x, cuts):
    """The outputs of a layer that reads `x` in chunks that end at `cuts`."""
    cache, ends = KeyValueCache(), [0, *sorted(cuts), x.shape[1]]
    with torch.no_grad():
        parts = [step(x[:, a:b], cache) for a, b in pairwise(ends)]
    assert cache.length == x.shape[1]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("name", ["huang", "shaw", "bidirectional"])
def test_left_padding_changes_nothing_and_padded_queries_give_zeros(name):
    layer = layer_with(name)
    x = normal(2, 9, 16)
    padded = torch.cat((torch.full((2, 4, 16), 1e3, dtype=torch.float64), x), 1)
    padding = (torch.arange(13) < 4).expand(2, -1)
    want, _ = layer(x, x, x, is_causal=True)
    got, weights = layer(padded, padded, padded, padding, is_causal=True)
    assert_close(got[:, 4:], want)
    assert_close(got[:, :4], layer.out_proj.bias.expand(2, 4, 16))
    assert (weights[:, :4] == 0).all()


def test_padding_reaches_over_the_cache():
    layer = layer_with("huang")
    x = normal(2, 9, 16)
    padding = torch.arange(9) < torch.tensor([[0], [3]])
    full, _ = layer(x, x, x, padding, is_causal=True)
    cache = KeyValueCache()
    parts = [
        layer(y, y, y, padding[:, :end], is_causal=True, cache=cache)[0]
        for y, end in ((x[:, :5], 5), (x[:, 5:], 9))
    ]
    assert_close(torch.cat(parts, 1), full)


@pytest.mark.parametrize("name", POSITIONS)
def test_the_scale_can_be_given(name):
    layer, other = layer_with(name), layer_with(name, scale=0.1)
    x = normal(2, 5, 16)
    assert_close(layer_with(name, scale=4**-0.5)(x, x, x), layer(x, x, x))
    if name != "none":
        assert not torch.allclose(other(x, x, x)[0], layer(x, x, x)[0], rtol=1e-3)


@pytest.mark.parametrize("name", ["huang", "shaw", "bidirectional", "none"])
def test_gradients_are_exact_in_every_parameter(name):
    layer = layer_with(name, num_kv_heads=2)
    x = normal(1, 9, 16).requires_grad_()
    names = [n for n, _ in layer.named_parameters()]

    def outputs(x, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, values, (x, x, x), {"is_causal": True})

    assert torch.autograd.gradcheck(outputs, (x, *layer.parameters()), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["huang", "shaw"])
def test_results_have_the_dtype_of_the_layer(name, dtype):
    layer = layer_with(name).to(dtype)
    x = normal(2, 9, 16, dtype=dtype)
    output, weights = layer(x, x, x)
    assert output.dtype == weights.dtype == dtype


@pytest.mark.parametrize("name", POSITIONS)
def test_autocast_is_near_the_exact_numbers(name):
    layer = layer_with(name).float()
    x = normal(2, 9, 16, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = layer(x, x, x, is_causal=True)
    assert output.dtype == torch.bfloat16
    exact, _ = layer(x, x, x, is_causal=True)
    # Three roundings in a row on numbers of this size: projection, attention, projection.
    assert (output - exact).abs().max() < 4 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("start", [0, 2, 30])
@pytest.mark.parametrize("name", [*POSITIONS, "xl"])
def test_queries_start_where_they_are_told(name, start):
    layer = layer_with(name) if name != "xl" else layer_of(TransformerXL(4, 4, biases=False))
    x, memory = normal(2, 5, 16), normal(2, 9, 16, seed=1)
    got, weights = layer(x, memory, memory, query_start=start, average_attn_weights=False)
    (q, _, _), (_, k, v) = heads_of(layer, x), heads_of(layer, memory)
    tables = {}
    if layer.position is not None:
        given_ = layer.position(q, k, query_start=start) if name == "xl" else layer.position(q, k)
        tables = {
            part: table(some.rows, some.first, some.beyond)
            for part, some in given_[2].tables.items()
        }
    heads = judged(q, k, v, query_start=start, **tables)
    assert_close(got, layer.out_proj(heads.transpose(1, 2).reshape(2, 5, 16)))
    tables.pop("values", None)
    identity = torch.eye(9, dtype=torch.float64).expand(2, 4, 9, 9)
    assert_close(weights, judged(q, k, identity, query_start=start, **tables))


@pytest.mark.parametrize("widths", [{}, {"kdim": 7, "vdim": 5}, {"bias": False}])
def test_a_position_can_borrow_the_projections(widths):
    layer, borrowed = layer_with("none", num_kv_heads=2, **widths), []
    layer.position = lambda q, k: (borrowed.extend((q, k)), (q, k, Terms()))[1]
    x = normal(2, 5, 16)
    key, value = normal(2, 5, layer.kdim, seed=1), normal(2, 5, layer.vdim, seed=2)
    layer(x, key, value)
    for made, heads in zip(
        (layer.project_queries(x), layer.project_keys(key)), borrowed, strict=True
    ):
        assert_close(made, heads.transpose(1, 2).flatten(2))
