"""`Deberta`: both terms of the paper, buckets, scale, shared projections and embeddings."""

import copy
import math
import pickle

import pytest
import torch
from torch.testing import assert_close

import relpos
from relpos.layers import KeyValueCache, MultiheadAttention
from relpos.positions import Deberta, DebertaEmbedding
from tests.factories import LENGTHS, judged, normal, qkv, table

# k = 4 without buckets; k = 20 with 2 * 6 rows, of which distances 0..3 have one each.
SPANS = [{"max_relative_positions": 4}, {"max_relative_positions": 20, "position_buckets": 6}]
each_span = pytest.mark.parametrize("span", SPANS, ids=["distances", "buckets"])


def built(head_dim=5, heads=2, **arguments):
    torch.manual_seed(0)
    return Deberta(head_dim, heads, **SPANS[0] | arguments).double()


def shared(position):
    """A layer whose own projections make the tables (`share_att_key`)."""
    layer = MultiheadAttention(16, 4).double()
    position = Deberta(
        4, 4, dtype=torch.float64, key_proj=layer.project_keys, query_proj=layer.project_queries,
        **position,
    )  # fmt: skip
    layer.position = position
    return layer


def row(distance, span):
    """The row of the embedding for a distance, query minus key, in one number after another."""
    furthest, buckets = span["max_relative_positions"], span.get("position_buckets")
    half = furthest if buckets is None else buckets
    if buckets is not None and abs(distance) > buckets // 2:
        middle = buckets // 2
        share = math.log(abs(distance) / middle) / math.log((furthest - 1) / middle)
        steps = middle + math.ceil(round((middle - 1) * share, 9))
        distance = steps if distance > 0 else -steps
    return min(max(half + distance, 0), 2 * half - 1)


@each_span
@pytest.mark.parametrize("lengths", [(3, 7), (7, 3), (30, 41)])
def test_scores_are_both_terms_of_the_paper(span, lengths):
    position = built(dim=6, **span)
    q, k, _ = qkv(*lengths)
    p = position.embedding.weight
    # Row by row, with one embedding at a time: key_proj(P)[x] cut into heads.
    by_key, by_query = (
        [project(p[x]).view(2, 5) for x in range(len(p))]
        for project in (position.key_proj, position.query_proj)
    )
    want = torch.empty(2, 2, *lengths, dtype=torch.float64)
    for i in range(lengths[0]):
        for j in range(lengths[1]):
            x = row(lengths[1] - lengths[0] + i - j, span)
            want[:, :, i, j] = (q[:, :, i] * by_key[x]).sum(-1) + (k[:, :, j] * by_query[x]).sum(-1)
    assert_close(position.logits(q, k), want / math.sqrt(15))


@each_span
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("parts", [("c2p", "p2c"), ("c2p",), ("p2c",)])
def test_attention_equals_the_double_loop(span, lengths, parts):
    position = built(**span, **{part: part in parts for part in ("c2p", "p2c")})
    q, k, v = qkv(*lengths)
    same_q, same_k, terms = position(q, k)
    assert same_q is q
    assert same_k is k
    got = relpos.attention(q, k, v, terms, scale=position.attention_scale)
    # One row of the judge's tables for each offset that can occur, so that nothing clamps.
    first, last = 1 - lengths[1], lengths[0] - 1
    at = [row(-offset, span) for offset in range(first, last + 1)]
    tables = {}
    for name, project in (("keys", position.key_proj), ("queries", position.query_proj)):
        if project is not None:
            rows = project(position.embedding())[at].view(-1, 2, 5).transpose(0, 1)
            tables[name] = table(rows, first)
    assert list(tables) == [{"c2p": "keys", "p2c": "queries"}[part] for part in parts]
    assert_close(got, judged(q, k, v, scale=(5 * (1 + len(parts))) ** -0.5, **tables))


@each_span
def test_tables_end_where_the_rows_stop_changing(span):
    position = built(**span)
    q, k, _ = qkv(3, 3)
    keys = position(q, k)[2].keys
    furthest = span["max_relative_positions"]
    assert (keys.first, keys.last) == (1 - furthest, furthest)
    assert row(furthest - 1, span) == row(9 * furthest, span) == 2 * position.span - 1
    assert row(-furthest, span) == row(-9 * furthest, span) == 0
    assert row(1 - furthest, span) == 1


def test_distance_k_behind_shares_the_row_of_k_minus_1_and_ahead_has_its_own():
    """TRAPS 5 and 6: 2k rows, which the embedding counts from key after query to key before."""
    position = built(1, 1, p2c=False)
    position.key_proj = torch.nn.Identity()
    # Row n of the embedding holds n, so that the scores name the row that each key selected.
    position.embedding.weight.data = torch.arange(8.0, dtype=torch.float64)[:, None]
    q = torch.ones(1, 1, 13, 1, dtype=torch.float64)
    selected = (position.logits(q, q)[0, 0, 6] / position.attention_scale).round(decimals=9)
    assert selected.tolist() == [7, 7, 7, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0]


def test_both_terms_are_indexed_by_the_same_row():
    """TRAPS 8: the paper writes delta(j, i) for p2c; its code has delta(i, j)."""
    position = built(1, 1)
    position.key_proj = position.query_proj = torch.nn.Identity()
    position.embedding.weight.data = torch.arange(8.0, dtype=torch.float64)[:, None]
    q = torch.ones(1, 1, 13, 1, dtype=torch.float64)
    nothing = torch.zeros_like(q)
    assert_close(position.logits(q, nothing), position.logits(nothing, q))


@pytest.mark.parametrize("parts", [{}, {"p2c": False}, {"c2p": False}])
def test_the_scale_counts_the_terms(parts):
    assert_close(built(**parts).attention_scale, (5 * (3 - len(parts))) ** -0.5)


def test_grouped_keys_use_the_rows_of_their_query_heads():
    position = built(heads=6)
    q, k, v = qkv(9, 9, h=6, g=2)
    _, _, terms = position(q, k)
    got = relpos.attention(q, k, v, terms, scale=position.attention_scale)
    tables = {name: table(some.rows, -3) for name, some in terms.tables.items()}
    assert_close(got, judged(q, k, v, scale=position.attention_scale, **tables))


@each_span
def test_a_layer_can_share_its_projections(span):
    layer = shared(span)
    assert [name for name, _ in layer.position.named_parameters()] == ["embedding.weight"]
    position = Deberta(4, 4, dtype=torch.float64, **span)
    w_q, w_k, _ = layer.in_proj_weight.chunk(3)
    torch.nn.init.normal_(layer.in_proj_bias)
    b_q, b_k, _ = layer.in_proj_bias.chunk(3)
    state = {"embedding.weight": layer.position.embedding.weight}
    state |= {"key_proj.weight": w_k, "key_proj.bias": b_k}
    state |= {"query_proj.weight": w_q, "query_proj.bias": b_q}
    position.load_state_dict(state)
    x = normal(2, 9, 16)
    got, _ = layer(x, x, x)
    layer.position = position
    assert_close(got, layer(x, x, x)[0])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_layer_shares_with_itself(clone):
    layer, x = shared(SPANS[0]), normal(2, 9, 16)
    other = clone(layer)
    assert_close(other(x, x, x), layer(x, x, x))
    with torch.no_grad():
        other.in_proj_weight.mul_(2)
    assert other.position.key_proj(x).equal(other.project_keys(x))


def test_layers_can_share_the_embedding():
    embedding = DebertaEmbedding(10, 4, norm=True, dtype=torch.float64)
    one, two = (Deberta(5, 2, 4, embedding=embedding, dtype=torch.float64) for _ in range(2))
    q, k, _ = qkv(3, 7)
    (one.logits(q, k) + two.logits(q, k)).square().sum().backward()
    assert one.embedding is two.embedding
    assert embedding.weight.grad.abs().sum() > 0
    assert embedding.norm.weight.grad.abs().sum() > 0
    before = embedding.weight.clone()
    one.reset_parameters()
    assert torch.equal(embedding.weight, before)


def test_the_embedding_can_be_normed_and_dropped():
    embedding = DebertaEmbedding(64, 5, norm=True, dropout=0.5, dtype=torch.float64)
    assert not torch.equal(embedding(), embedding())
    rows = embedding.eval()()
    assert_close(rows.mean(1), torch.zeros(10, dtype=torch.float64))
    assert_close(rows.var(1, correction=0), torch.ones(10, dtype=torch.float64), rtol=1e-5, atol=0)
    embedding.norm.weight.data.fill_(3)
    embedding.reset_parameters()
    assert (embedding.norm.weight == 1).all()
    assert repr(embedding).startswith("DebertaEmbedding(\n  dim=64, span=5")


def test_rows_start_symmetric_around_zero_with_unit_length():
    rows = DebertaEmbedding(64, 400).weight
    assert abs(rows.mean()) < 0.003
    assert_close(rows.square().sum(-1).mean(), torch.tensor(1.0), rtol=0.02, atol=0)


@each_span
@pytest.mark.parametrize("cuts", [[33], [1, 32], [20, 1, 1, 11]])
def test_decoding_in_chunks_equals_one_pass(span, cuts):
    position = Deberta(4, 4, **span)
    layer = MultiheadAttention(16, 4, position=position, num_kv_heads=2)
    layer, x, cache = layer.double(), normal(2, 33, 16), KeyValueCache()
    full, _ = layer(x, x, x, is_causal=True)
    parts = [layer(y, y, y, is_causal=True, cache=cache)[0] for y in x.split(cuts, 1)]
    assert_close(torch.cat(parts, 1), full)


@each_span
def test_gradients_are_exact_in_every_parameter(span):
    position = built(3, 2, dim=4, **span)
    # Longer than 2k, so that every row is selected.
    q, k, v = (x.requires_grad_() for x in qkv(25, 25, d=3, b=1))
    names = [name for name, _ in position.named_parameters()]

    def outputs(q, k, v, *parameters):
        values = dict(zip(names, parameters, strict=True))
        _, _, terms = torch.func.functional_call(position, values, (q, k))
        return relpos.attention(q, k, v, terms, scale=position.attention_scale)

    leaves = (q, k, v, *position.parameters())
    assert torch.autograd.gradcheck(outputs, leaves, fast_mode=True)
    grads = torch.autograd.grad(outputs(*leaves).square().sum(), leaves[3:])
    for name, grad in zip(names, grads, strict=True):
        # What adds the same number to all scores of a query changes nothing.
        assert (grad.abs().max() > 1e-6) == (name != "key_proj.bias"), name


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_agree_and_share_nothing(clone):
    position = built()
    q, k, _ = qkv(3, 7)
    other = clone(position)
    assert_close(other.logits(q, k), position.logits(q, k))
    for mine, others in zip(position.parameters(), other.parameters(), strict=True):
        assert mine.data_ptr() != others.data_ptr()
    other = Deberta(5, 2, 4, dtype=torch.float64)
    other.load_state_dict(position.state_dict())
    assert_close(other.logits(q, k), position.logits(q, k))


def test_there_is_nothing_but_parameters_in_the_state():
    assert {name: tuple(x.shape) for name, x in built(dim=6).state_dict().items()} == {
        "embedding.weight": (8, 6),
        **{f"{name}_proj.weight": (10, 6) for name in ("key", "query")},
        **{f"{name}_proj.bias": (10,) for name in ("key", "query")},
    }


def test_dtype_and_device_are_taken():
    for parameter in Deberta(5, 2, 4, device="meta", dtype=torch.bfloat16).parameters():
        assert parameter.dtype == torch.bfloat16
        assert parameter.is_meta


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_gives_tables_of_its_own_dtype(dtype):
    position = built().to(dtype)
    q, k, v = (x.to(dtype) for x in qkv(3, 7))
    terms = position(q, k)[2]
    assert terms.keys.rows.dtype == terms.queries.rows.dtype == dtype
    assert relpos.attention(q, k, v, terms).dtype == dtype


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_shared_projections_compile_without_a_graph_break_at_any_length():
    layer = shared(SPANS[1])

    def run(x):
        return layer(x, x, x, need_weights=False)[0]

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="eager")
    for length in (5, 33):
        x = normal(2, length, 16)
        assert_close(compiled(x), run(x))


def test_repr_tells_distances_and_terms():
    assert built(p2c=False).extra_repr() == (
        "head_dim=5, heads=2, dim=10, max_relative_positions=4, terms=c2p"
    )
    assert "position_buckets=6, terms=c2p and p2c" in built(**SPANS[1]).extra_repr()


@pytest.mark.no_typecheck
def test_inputs_that_do_not_fit_are_named():
    q, k, _ = qkv(3, 3, d=6)
    with pytest.raises(relpos.ShapeError, match=r"Deberta: q must be .* with h=2, d=5, got"):
        Deberta(5, 2, 4)(q, k)
    with pytest.raises(relpos.ShapeError, match=r"Deberta: q must be .* with h=3, d=6, got"):
        Deberta(6, 3, 4)(q, k)
    with pytest.raises(relpos.ShapeError, match=r"Deberta: k must be .* with d=6, got"):
        Deberta(6, 2, 4)(q, k[..., :5])


def test_given_modules_that_do_not_fit_are_named():
    q, k, _ = qkv(3, 3)
    with pytest.raises(
        relpos.ShapeError, match=r"Deberta: embedding\(\) must be .*64 on cpu as the parameters are"
    ):
        Deberta(5, 2, 4, key_proj=torch.nn.Linear(10, 10).double())(q, k)
    with pytest.raises(
        relpos.ShapeError, match=r"Deberta: embedding\(\) must be .* with r=8, e=10, got \(10, 10\)"
    ):
        Deberta(5, 2, 4, embedding=DebertaEmbedding(10, 5))(q, k)
    with pytest.raises(
        relpos.ShapeError,
        match=r"Deberta: query_proj\(P\) must be .* with r=8, hd=10, got \(8, 9\)",
    ):
        Deberta(5, 2, 4, query_proj=torch.nn.Linear(10, 9))(q, k)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"head_dim": 0}, "head_dim must be an integer >= 1, got 0"),
        ({"heads": 0}, "heads must be an integer >= 1, got 0"),
        ({"dim": 0}, "dim must be an integer >= 1, got 0"),
        (
            {"max_relative_positions": -1},
            "max_relative_positions must be .* got -1, which in a configuration means its "
            "max_position_embeddings",
        ),
        ({"max_relative_positions": 0}, "max_relative_positions must be an integer >= 1, got 0"),
        ({"position_buckets": 2}, "position_buckets must be an integer >= 4, got 2"),
        ({"position_buckets": 7}, "position_buckets must be even, got 7"),
        (
            {"position_buckets": 8, "max_relative_positions": 5},
            "max_relative_positions must be more than position_buckets / 2 [+] 1 = 5, got 5",
        ),
        ({"c2p": False, "p2c": False}, "c2p or p2c must be True, got False for both"),
        (
            {"c2p": False, "key_proj": torch.nn.Identity()},
            "key_proj must be None without c2p, got one",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=f"Deberta: {words}"):
        Deberta(**{"head_dim": 5, "heads": 2, "max_relative_positions": 100} | arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dim": 0}, "dim must be an integer >= 1, got 0"),
        ({"span": 0}, "span must be an integer >= 1, got 0"),
        ({"dropout": 1.0}, "dropout must be in 0 <= dropout < 1, got 1.0"),
    ],
)
def test_a_bad_embedding_is_named(arguments, words):
    with pytest.raises(ValueError, match=f"DebertaEmbedding: {words}"):
        DebertaEmbedding(**{"dim": 5, "span": 2} | arguments)


@pytest.mark.no_typecheck
def test_an_embedding_that_is_no_module_is_named():
    with pytest.raises(TypeError, match=r"Deberta: embedding must be an nn\.Module, got str"):
        Deberta(4, heads=2, max_relative_positions=8, embedding="x")  # type: ignore[arg-type]
