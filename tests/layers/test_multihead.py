"""Without a position the layer is torch's, number by number."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import relpos
from relpos.layers import KeyValueCache, MultiheadAttention
from relpos.positions import NoPosition, Shaw
from tests.factories import normal


def pair(embed_dim=12, heads=3, **arguments):
    """Torch's layer and ours, made from the same seed."""
    arguments = {"batch_first": True, "dtype": torch.float64} | arguments
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(embed_dim, heads, **arguments)
    torch.manual_seed(0)
    ours = MultiheadAttention(embed_dim, heads, **arguments)
    return theirs, ours


def with_biases(theirs, ours):
    """Biases that are not zero, so that a misplaced one shows."""
    with torch.no_grad():
        theirs.in_proj_bias.copy_(normal(*theirs.in_proj_bias.shape, seed=8))
        theirs.out_proj.bias.copy_(normal(*theirs.out_proj.bias.shape, seed=9))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


FORMS = [{}, {"bias": False}, {"kdim": 7}, {"vdim": 5}, {"kdim": 7, "vdim": 5, "bias": False}]
# A mask of each form for b = 2, h = 3, i = 5, j = 9; the first key is always left.
BOOLEAN_PADDING = torch.arange(9) >= torch.tensor([[6], [9]])
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": BOOLEAN_PADDING},
    "float padding": {"key_padding_mask": normal(2, 9, seed=3)},
    "pairs": {"attn_mask": torch.triu(torch.ones(5, 9, dtype=torch.bool), 1)},
    "float pairs": {"attn_mask": normal(5, 9, seed=4)},
    "pairs per head": {"attn_mask": (normal(6, 5, 9, seed=5) > 0.5) & (torch.arange(9) > 0)},
    "float pairs per head": {"attn_mask": normal(6, 5, 9, seed=5)},
    "both": {
        "key_padding_mask": BOOLEAN_PADDING,
        "attn_mask": (normal(6, 5, 9, seed=5) > 0.5) & (torch.arange(9) > 0),
    },
    "both float": {"key_padding_mask": normal(2, 9, seed=3), "attn_mask": normal(5, 9, seed=4)},
}


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_parameters_have_torchs_names_shapes_and_initial_numbers(form):
    theirs, ours = pair(**form)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_output_weights_and_gradients_are_torchs(form, batch_first, average):
    layers = pair(batch_first=batch_first, **form)
    results = []
    for layer in layers:
        inputs = [
            normal(*((2, n) if batch_first else (n, 2)), width, seed=n).requires_grad_()
            for n, width in ((5, 12), (9, layer.kdim), (9, layer.vdim))
        ]
        output, weights = layer(*inputs, average_attn_weights=average)
        loss = (output * normal(*output.shape, seed=6)).sum()
        loss = loss + (weights * normal(*weights.shape, seed=7)).sum()
        loss.backward()
        tensors = [*inputs, *layer.parameters()]
        results.append([output, weights, *(x.grad for x in tensors)])
    for theirs, ours in zip(*results, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("masks", MASKS.values(), ids=list(MASKS))
@pytest.mark.parametrize("need_weights", [True, False])
def test_every_form_of_mask_means_what_it_means_in_torch(masks, need_weights):
    theirs, ours = with_biases(*pair())
    query, memory = normal(2, 5, 12), normal(2, 9, 12, seed=1)
    arguments = masks | {"need_weights": need_weights, "average_attn_weights": False}
    want, want_weights = theirs(query, memory, memory, **arguments)
    got, got_weights = ours(query, memory, memory, **arguments)
    assert_close(got, want)
    assert_close(got_weights, want_weights)


def test_a_boolean_and_a_float_mask_can_be_mixed():
    _, ours = with_biases(*pair())
    x, added = normal(2, 9, 12), normal(9, 9, seed=4)
    pads = torch.zeros(2, 9, dtype=torch.float64).masked_fill(BOOLEAN_PADDING, -torch.inf)
    got = ours(x, x, x, BOOLEAN_PADDING, attn_mask=added)
    assert_close(got, ours(x, x, x, pads, attn_mask=added))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", [(5, 9), (3, 5, 9)])
def test_one_sequence_without_a_batch(batch_first, mask):
    theirs, ours = with_biases(*pair(batch_first=batch_first))
    query, memory = normal(5, 12), normal(9, 12, seed=1)
    arguments = {"key_padding_mask": BOOLEAN_PADDING[0], "attn_mask": normal(*mask) > 1}
    arguments["attn_mask"][..., 0] = False
    for average in (True, False):
        arguments["average_attn_weights"] = average
        assert_close(
            ours(query, memory, memory, **arguments), theirs(query, memory, memory, **arguments)
        )


def test_is_causal_with_its_mask_equals_torch_and_needs_no_mask():
    theirs, ours = with_biases(*pair())
    x = normal(2, 9, 12)
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1)
    want = theirs(x, x, x, attn_mask=mask, is_causal=True)
    assert_close(ours(x, x, x, attn_mask=mask, is_causal=True), want)
    assert_close(ours(x, x, x, is_causal=True), want)


def test_is_causal_lets_the_last_queries_see_the_last_keys():
    _, ours = with_biases(*pair())
    x = normal(2, 9, 12)
    full, _ = ours(x, x, x, is_causal=True)
    tail, weights = ours(x[:, 5:], x, x, is_causal=True)
    assert_close(tail, full[:, 5:])
    assert torch.equal(weights == 0, torch.ones(4, 9).triu(6).bool().expand(2, -1, -1))


def test_a_query_without_any_key_gives_zeros_where_torch_gives_nan():
    theirs, ours = pair()
    x = normal(2, 9, 12).requires_grad_()
    nothing = torch.tensor([[False] * 9, [True] * 9])
    assert theirs(x, x, x, nothing)[0][1].isnan().all()
    output, weights = ours(x, x, x, nothing)
    assert (output[1] == 0).all()
    assert (weights[1] == 0).all()
    (output.square().sum() + weights.square().sum()).backward()
    assert x.grad.isfinite().all()


def test_need_weights_false_returns_none():
    _, ours = pair()
    x = normal(2, 9, 12)
    output, weights = ours(x, x, x, need_weights=False)
    assert weights is None
    assert_close(output, ours(x, x, x)[0])


def test_dropout_acts_in_training_only_and_keeps_the_mean():
    _, ours = pair(dropout=0.5)
    x = normal(1, 9, 12)
    calm, _ = ours.eval()(x, x, x)
    assert_close(ours(x, x, x)[0], calm)
    torch.manual_seed(0)
    many, _ = ours.train()(*[x.expand(20_000, -1, -1)] * 3, need_weights=False)
    assert many.std(0).min() > 0
    # Six standard errors of the mean.
    assert ((many.mean(0) - calm[0]).abs() < 6 * many.std(0) / 20_000**0.5).all()


def test_a_torch_checkpoint_loads_beside_a_position():
    theirs, _ = pair()
    layer = MultiheadAttention(12, 3, position=Shaw(4, 2), dtype=torch.float64)
    missing, unexpected = layer.load_state_dict(theirs.state_dict(), strict=False)
    assert missing == ["position.keys", "position.values"]
    assert not unexpected


def test_a_torch_encoder_layer_uses_it_in_evaluation_too():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(12, 3, 24, dropout=0.0, batch_first=True)
    encoder.self_attn = MultiheadAttention(12, 3, position=Shaw(4, 2))
    x = torch.randn(2, 5, 12)
    trained = encoder(x)
    with torch.no_grad():
        assert_close(encoder.eval()(x), trained)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_agree(clone):
    layer = MultiheadAttention(12, 3, position=Shaw(4, 2))
    x = torch.randn(2, 5, 12)
    assert_close(clone(layer)(x, x, x), layer(x, x, x))


@pytest.mark.parametrize("refused", ["add_bias_kv", "add_zero_attn"])
def test_appended_keys_are_refused_in_words(refused):
    with pytest.raises(ValueError, match=f"{refused} must be False, since an appended key has no"):
        MultiheadAttention(12, 3, **{refused: True})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((12, 5), "embed_dim must be a multiple of num_heads=5 without a head_dim, got 12"),
        ((0, 1), "embed_dim must be an integer >= 1, got 0"),
        ((12, 0), "num_heads must be an integer >= 1, got 0"),
        ((12, 3, 1.0), "dropout must be in 0 <= dropout < 1, got 1.0"),
    ],
)
def test_bad_sizes_are_named(arguments, words):
    with pytest.raises(ValueError, match=f"MultiheadAttention: {words}"):
        MultiheadAttention(*arguments)


def test_bad_groups_are_named():
    with pytest.raises(ValueError, match="num_kv_heads must divide num_heads=3, got 2"):
        MultiheadAttention(12, 3, num_kv_heads=2)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((2, 5, 11), (2, 9, 12), (2, 9, 12)), r"query must be \(b, i, e\) with e=12, got"),
        (((2, 5, 12), (3, 9, 12), (3, 9, 12)), r"key must be .* with b=2, kdim=12, got"),
        (((2, 5, 12), (2, 9, 12), (2, 8, 12)), r"value must be .* with b=2, j=9, vdim=12, got"),
        (((5, 12), (1, 9, 12), (1, 9, 12)), "key and value must have 2 axes, as query has, got 3"),
    ],
)
def test_inputs_that_do_not_fit_are_named(shapes, words):
    with pytest.raises(relpos.ShapeError, match=f"MultiheadAttention: {words}"):
        MultiheadAttention(12, 3)(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("name", "mask", "words"),
    [
        ("key_padding_mask", torch.zeros(9, 2), r"must be \(b, j\), here \(2, 9\), got \(9, 2\)"),
        ("attn_mask", torch.zeros(2, 5, 9), r"here \(5, 9\) or \(6, 5, 9\), got \(2, 5, 9\)"),
        ("attn_mask", torch.zeros(5, 9).int(), r"must be boolean \(True is dropped\) or floating"),
    ],
)
def test_masks_that_do_not_fit_are_named(name, mask, words):
    x, memory = torch.zeros(2, 5, 12), torch.zeros(2, 9, 12)
    with pytest.raises(relpos.ShapeError, match=f"MultiheadAttention: {name} .*{words}"):
        MultiheadAttention(12, 3)(x, memory, memory, **{name: mask})


@pytest.mark.no_typecheck
@pytest.mark.parametrize("scale", [0.1, -0.5, 0, np.float32(0.1)])
def test_the_weights_use_the_layers_scale(scale):
    layer = MultiheadAttention(12, 3, position=Shaw(4, 2), scale=scale).double()
    x = normal(2, 9, 12)
    q, k, _ = (y.unflatten(-1, (3, 4)).transpose(1, 2) for y in packed(layer, x))
    scores = float(scale) * (q @ k.mT) + relpos.relative_logits(
        q, k, layer.position(q, k)[2], scale=float(scale)
    )
    _, weights = layer(x, x, x, average_attn_weights=False)
    assert_close(weights, scores.softmax(-1))


def packed(layer, x):
    """The inputs of the heads, side by side."""
    return (x @ layer.in_proj_weight.mT + layer.in_proj_bias).chunk(3, -1)


@pytest.mark.no_typecheck
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "0.5", True, torch.tensor(0.5)])
def test_a_scale_that_is_no_finite_number_is_named(scale):
    with pytest.raises(ValueError, match="MultiheadAttention: scale must be a finite number or"):
        MultiheadAttention(12, 3, scale=scale)


@pytest.mark.parametrize("form", [{}, {"kdim": 7, "vdim": 5}, {"bias": False}], ids=str)
@pytest.mark.parametrize("groups", [3, 1])
def test_heads_can_have_another_width(form, groups):
    position = Shaw(5, 2)
    layer = MultiheadAttention(12, 3, head_dim=5, num_kv_heads=groups, position=position, **form)
    layer.double()
    assert layer.out_proj.weight.shape == (12, 15)
    x, key = normal(2, 9, 12), normal(2, 9, layer.kdim, seed=1)
    value = normal(2, 9, layer.vdim, seed=2)
    parts = (layer.project_queries(x), layer.project_keys(key), layer._linear(2, value))
    q, k, v = (y.unflatten(-1, (-1, 5)).transpose(1, 2) for y in parts)
    heads = relpos.attention(q, k, v, layer.position(q, k)[2])
    got, weights = layer(x, key, value)
    assert_close(got, layer.out_proj(heads.transpose(1, 2).flatten(2)))
    assert_close(weights.sum(-1), torch.ones(2, 9, dtype=torch.float64))
    assert q.shape == (2, 3, 9, 5)


def test_the_widths_of_t5s_largest_models_are_possible():
    layer = MultiheadAttention(8, 4, bias=False, head_dim=16, scale=1.0)
    shapes = {name: tuple(p.shape) for name, p in layer.state_dict().items()}
    assert shapes == {"in_proj_weight": (192, 8), "out_proj.weight": (8, 64)}
    assert MultiheadAttention(8, 5, head_dim=3).head_dim == 3


def test_repr_tells_what_is_not_as_in_torch():
    assert MultiheadAttention(12, 3).extra_repr() == "embed_dim=12, heads=3"
    layer = MultiheadAttention(12, 4, num_kv_heads=2, head_dim=5, scale=0.25)
    assert layer.extra_repr() == "embed_dim=12, heads=4, kv_heads=2, head_dim=5, scale=0.25"


@pytest.mark.parametrize("causal", [False, True])
def test_documents_packed_into_one_row_are_as_if_alone(causal):
    layer = MultiheadAttention(16, 4, position=Shaw(4, 3)).double()
    x = normal(1, 12, 16)
    documents = relpos.document_ids(torch.tensor([0, 5, 12]), 12)
    got, weights = layer(x, x, x, is_causal=causal, documents=documents)
    for part in (slice(0, 5), slice(5, 12)):
        one = x[:, part]
        alone, alone_weights = layer(one, one, one, is_causal=causal)
        assert_close(got[:, part], alone)
        assert_close(weights[:, part, part], alone_weights)
    assert_close(layer(x[0], x[0], x[0], is_causal=causal, documents=documents[0])[0], got[0])


def test_across_packed_rows_each_document_reads_its_own():
    layer = MultiheadAttention(16, 4, position=Shaw(4, 3)).double()
    x, memory = normal(1, 12, 16), normal(1, 9, 16, seed=1)
    of_queries = relpos.document_ids(torch.tensor([0, 5, 12]), 12)
    documents = relpos.document_ids(torch.tensor([0, 7, 9]), 9)
    given = {"documents": documents, "query_documents": of_queries}
    got, weights = layer(x, memory, memory, query_start=0, **given)
    mask = of_queries[0, :, None] != documents[0]
    want, want_weights = layer(x, memory, memory, attn_mask=mask, query_start=0)
    assert_close(got, want)
    assert_close(weights, want_weights)
    one = {name: each[0] for name, each in given.items()}
    assert_close(layer(x[0], memory[0], memory[0], query_start=0, **one)[0], got[0])
    with pytest.raises(ValueError, match="query_documents must come with documents, those of the"):
        layer(x, memory, memory, query_documents=of_queries)


def test_documents_reach_over_the_cache():
    layer = MultiheadAttention(16, 4, position=Shaw(4, 3)).double().eval()
    x, documents = normal(2, 9, 16), torch.arange(9)[None] // 4
    whole, _ = layer(x, x, x, is_causal=True, documents=documents)
    cache = KeyValueCache()
    parts = [
        layer(y, y, y, is_causal=True, cache=cache, documents=documents[:, :end])[0]
        for y, end in ((x[:, :6], 6), (x[:, 6:], 9))
    ]
    assert_close(torch.cat(parts, 1), whole)


@pytest.mark.no_typecheck
def test_wrong_documents_leave_the_cache_as_it_was():
    layer, cache = MultiheadAttention(16, 4), KeyValueCache()
    x = normal(1, 5, 16, dtype=torch.float32)
    for wrong in (torch.zeros(1, 4).long(), torch.zeros(1, 5)):
        with pytest.raises(relpos.ShapeError, match="documents must be"):
            layer(x, x, x, is_causal=True, cache=cache, documents=wrong)
    assert cache.length == 0


@pytest.mark.no_typecheck
@pytest.mark.parametrize("position", [Shaw, NoPosition])
def test_the_class_of_a_scheme_in_place_of_one_is_named(position):
    words = f"position must be a module or a function, got the class {position.__name__}"
    with pytest.raises(TypeError, match=f"^MultiheadAttention: {words}$"):
        MultiheadAttention(12, 3, position=position)
