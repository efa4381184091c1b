"""`DecoderLM`: equal starts, cached decoding, causality, configuration, state dicts."""

import copy
import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import relpos
from relpos_tasks.models import POSITIONS, DecoderConfig, DecoderLM

NAMES = list(POSITIONS)
each_position = pytest.mark.parametrize("position", NAMES)


def built(position="huang", *, seed=0, **changes):
    torch.manual_seed(seed)
    settings = {"width": 24, "layers": 2, "heads": 3, "max_length": 9, "max_distance": 4}
    config = DecoderConfig(vocabulary=13, position=position, **settings | changes)
    return DecoderLM(config).double().eval()


def read(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(13, shape, generator=generator)


@each_position
@pytest.mark.parametrize("length", [1, 33])
def test_logits_come_for_every_token_even_beyond_max_length(position, length):
    logits = built(position)(read(2, length))
    assert logits.shape == (2, length, 13)
    assert logits.isfinite().all()


@each_position
@pytest.mark.parametrize("shared_heads", [True, False])
def test_everything_but_the_positions_starts_with_the_same_numbers(position, shared_heads):
    model = built(position, shared_heads=shared_heads)
    found = {n: p for n, p in model.named_parameters() if "position" not in n}
    plain = dict(built("none").named_parameters())
    assert list(found) == list(plain)
    for name, parameter in plain.items():
        assert torch.equal(found[name], parameter), name


def test_blocks_have_tables_of_their_own():
    model = built("huang", shared_heads=False, max_distance=None)
    tables = [block.attention.position.keys for block in model.blocks]
    assert [tuple(rows.shape) for rows in tables] == [(3, 9, 8)] * 2
    assert not torch.equal(*tables)


@pytest.mark.parametrize("window", [None, 3])
@each_position
@given(cuts=st.sets(st.integers(1, 32), max_size=6))
@settings(max_examples=6, deadline=None)
def test_decoding_in_chunks_equals_one_pass(position, window, cuts):
    model, tokens = built(position, attention_window=window), read(2, 33)
    cache, parts = model.new_cache(), torch.tensor_split(tokens, sorted(cuts), 1)
    with torch.no_grad():
        got = torch.cat([model(part, cache) for part in parts], 1)
        assert_close(got, model(tokens))
    # Where a key's row depends on its position, none may be dropped.
    keeps_all = window is None or position == "absolute-keys"
    last = 0 if keeps_all else max(0, 33 - len(parts[-1][0]) - window)
    assert {(layer.start, layer.length) for layer in cache} == {(last, 33)}


@each_position
def test_a_token_sees_as_far_back_as_the_window_in_each_layer(position):
    model, tokens = built(position, attention_window=4), read(1, 33)
    earlier = tokens.clone()
    earlier[:, :10] = (earlier[:, :10] + 1) % 13
    with torch.no_grad():
        got, want = model(earlier), model(tokens)
    # Two layers look back twice as far.
    assert_close(got[:, 18:], want[:, 18:])
    assert not torch.allclose(got[:, 17], want[:, 17])


@each_position
def test_what_comes_later_changes_nothing_before(position):
    model, tokens = built(position), read(2, 33)
    later = tokens.clone()
    later[:, 20:] = (later[:, 20:] + 1) % 13
    with torch.no_grad():
        assert_close(model(later)[:, :20], model(tokens)[:, :20])


@pytest.mark.parametrize("position", ["huang", "shaw", "absolute", "sinusoidal"])
def test_a_position_tells_the_order_of_what_was_read(position):
    model = built(position)
    one, other = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 1, 2, 4]])
    assert not torch.allclose(model(one)[:, -1], model(other)[:, -1])
    plain = built("none", layers=1)
    assert_close(plain(one)[:, -1], plain(other)[:, -1])


@each_position
def test_training_reaches_every_parameter_and_starts_near_uniform(position):
    model, tokens = built(position, dropout=0.0).train(), read(4, 33)
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    # Logits of variance 1/4 cost about an eighth of a nat over the uniform guess.
    assert abs(loss.item() - torch.tensor(13.0).log().item()) < 0.4
    loss.backward()
    for name, parameter in model.named_parameters():
        # Softmax does not feel a bias that all keys share.
        if not name.endswith("in_proj_bias"):
            assert parameter.grad.abs().sum() > 0, name


def test_residual_projections_start_smaller_with_more_layers():
    model = built(width=96, layers=8, heads=4)
    std = 0.5 * 96**-0.5
    for block in model.blocks:
        for weight in (block.attention.out_proj.weight, block.mlp[2].weight):
            assert_close(weight.std().item(), std / 4, rtol=0.03, atol=0)
        for weight in (block.attention.in_proj_weight, block.mlp[0].weight):
            assert_close(weight.std().item(), std, rtol=0.03, atol=0)
    assert_close(model.head.weight.std().item(), std, rtol=0.06, atol=0)


@each_position
def test_a_model_goes_through_state_dict_copy_and_pickle(position):
    model, tokens = built(position), read(2, 12)
    other = built(position, seed=1)
    other.load_state_dict(model.state_dict())
    for same in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_close(same(tokens), model(tokens))


@pytest.mark.parametrize(
    ("position", "rows"), [("huang", 5), ("shaw", 5), ("deberta", 10), ("relative-logits", 5)]
)
def test_tables_reach_as_far_back_as_asked(position, rows):
    assert rows in table_sizes(built(position, max_distance=4))
    assert rows not in table_sizes(built(position, max_distance=3))


def table_sizes(model):
    position = model.blocks[0].attention.position
    return {size for parameter in position.parameters() for size in parameter.shape}


def test_a_random_start_trains_every_row_and_measures_from_the_first():
    model = built("absolute", random_start=True, max_length=64)
    tokens = read(1, 8)
    assert torch.equal(model(tokens), model(tokens))
    assert torch.equal(model(tokens), built("absolute", max_length=64)(tokens))
    model.train()
    selected = torch.zeros(64)
    for _ in range(100):
        model.zero_grad()
        model(read(8, 8)).sum().backward()
        selected += model.position.rows.grad.abs().sum(-1) > 0
    # A row in the middle is selected by 8 of 71 starts: not at all by (63 / 71)^8 of the batches.
    assert (selected > 40).all()


def test_sequences_of_a_batch_begin_in_different_places():
    model = built("absolute", random_start=True, max_length=64).train()
    tokens = read(1, 8).expand(16, -1)
    assert len(torch.unique(model(tokens), dim=0)) > 4


def test_a_configuration_goes_through_json():
    config = DecoderConfig(vocabulary=7, position="shaw", hidden=100, attention_window=9)
    assert DecoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert DecoderConfig.from_dict({"vocabulary": 7}) == DecoderConfig(vocabulary=7)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 130}, "width must be a multiple of heads=4, got 130"),
        ({"layers": 0}, "layers must be an integer >= 1, got 0"),
        ({"hidden": 2.5}, "hidden must be an integer >= 1, got 2.5"),
        ({"attention_window": 0}, "attention_window must be an integer >= 1, got 0"),
        ({"attention_window": (4, 0)}, r"attention_window must be an integer >= 1, got \(4, 0\)"),
        ({"dropout": 1.0}, "dropout must be in 0 <= dropout < 1, got 1.0"),
        (
            {"position": "bidirectional"},
            "position must be one of .huang., .shaw., .absolute., .sinusoidal., .none., .*, "
            "got 'bidirectional'",
        ),
    ],
)
def test_bad_settings_are_named(changes, words):
    with pytest.raises(ValueError, match=f"DecoderConfig: {words}"):
        DecoderConfig(vocabulary=7, **changes)


def test_bad_fields_are_named():
    with pytest.raises(ValueError, match=r"fields must be among vocabulary, .*, got depth, size"):
        DecoderConfig.from_dict({"vocabulary": 7, "size": 1, "depth": 2})
    with pytest.raises(ValueError, match="fields must contain vocabulary"):
        DecoderConfig.from_dict({"width": 8})


@pytest.mark.no_typecheck
def test_bad_tokens_and_caches_are_named():
    model = built()
    with pytest.raises(relpos.ShapeError, match=r"DecoderLM: tokens must be \(b, i\), got \(3,\)"):
        model(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="DecoderLM: cache must have 2 layers, got 1"):
        model(read(1, 3), model.new_cache()[:1])


def test_an_error_in_a_later_layer_leaves_every_cache_as_it_was():
    model = DecoderLM(DecoderConfig(vocabulary=7, width=8, layers=2, heads=2)).eval()
    cache, tokens = model.new_cache(), torch.zeros(1, 3, dtype=torch.int64)
    model(tokens, cache)
    model.blocks[1].double()
    with pytest.raises((RuntimeError, ValueError)):
        model(tokens, cache)
    assert [layer.length for layer in cache] == [3, 3]


class Step(nn.Module):
    """The model, given each layer's keys and values so far."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, past):
        caches = self.model.new_cache()
        for cache, (keys, values) in zip(caches, past, strict=True):
            cache.append(keys, values)
        return self.model(tokens, caches), [(cache.keys, cache.values) for cache in caches]


@pytest.mark.no_typecheck
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@each_position
@pytest.mark.costly(2)
def test_an_exported_step_goes_on_where_the_one_before_ended(position):
    """Positions at the input, too, count on from the tokens whose keys are given."""
    model, tokens = built(position, max_length=20), read(2, 20)
    held, new = {2: Dim("held", min=0, max=99)}, {1: Dim("new", min=1, max=99)}
    layers = range(model.config.layers)
    example = [tuple(torch.randn(2, 2, 3, 5, 8).double()) for _ in layers]
    with torch.no_grad():
        step = torch.export.export(
            Step(model), (tokens[:, :3].contiguous(), example),
            dynamic_shapes={"tokens": new, "past": [(held, held) for _ in layers]},
        ).module()  # fmt: skip
    found, past = [], [tuple(torch.zeros(2, 2, 3, 0, 8).double()) for _ in layers]
    for some in tokens.split([7, 1, 1, 4, *[1] * 7], 1):
        logits, past = step(some, past)
        found.append(logits)
    with torch.no_grad():
        assert_close(torch.cat(found, 1), model(tokens))
