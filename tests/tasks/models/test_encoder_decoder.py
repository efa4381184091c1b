"""`EncoderDecoder`: equal starts, padding, causality, cached steps, tying, configuration."""

import copy
import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import relpos
from relpos_tasks.models import POSITIONS, EncoderDecoder, EncoderDecoderConfig
from relpos_tasks.training.checkpoint import load, save_about, save_weights

NAMES = [name for name, scheme in POSITIONS.items() if not scheme.causal_only]
each_position = pytest.mark.parametrize("position", NAMES)
SIZES = {"width": 24, "layers": 2, "heads": 3, "max_length": 9, "max_distance": 4}


def built(position="shaw", *, seed=0, source_vocabulary=13, target_vocabulary=13, **changes):
    torch.manual_seed(seed)
    config = EncoderDecoderConfig(
        source_vocabulary, target_vocabulary, position=position, **SIZES | changes
    )
    return EncoderDecoder(config).double().eval()


def read(*shape, seed=0):
    return torch.randint(13, shape, generator=torch.Generator().manual_seed(seed))


PADDING = torch.arange(17) >= torch.tensor([[17], [5], [11]])


@each_position
@pytest.mark.parametrize("lengths", [(1, 1), (33, 1), (5, 33)])
def test_logits_come_for_every_target_token_even_beyond_max_length(position, lengths):
    j, i = lengths
    logits = built(position)(read(2, j), read(2, i))
    assert logits.shape == (2, i, 13)
    assert logits.isfinite().all()


@each_position
@pytest.mark.parametrize("shared_heads", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_everything_but_the_positions_starts_with_the_same_numbers(position, shared_heads, tied):
    model = built(position, shared_heads=shared_heads, tied=tied)
    found = {n: p for n, p in model.named_parameters() if "position" not in n}
    plain = dict(built("none", tied=tied).named_parameters())
    assert list(found) == list(plain)
    for name, parameter in plain.items():
        assert torch.equal(found[name], parameter), name


@each_position
def test_what_stands_behind_the_end_of_a_source_changes_nothing(position):
    model, source, target = built(position), read(3, 17), read(3, 9, seed=1)
    changed = torch.where(PADDING, (source + 1) % 13, source)
    with torch.no_grad():
        together = model(changed, target, PADDING)
        assert_close(together, model(source, target, PADDING))
        assert not torch.allclose(model(changed, target)[1], together[1])
        for n, length in enumerate((17, 5, 11)):
            alone = model(source[n : n + 1, :length], target[n : n + 1])
            assert_close(together[n], alone[0])


@each_position
def test_a_target_token_sees_those_before_it_and_all_of_the_source(position):
    model, source, target = built(position), read(2, 7), read(2, 33, seed=1)
    later, other = target.clone(), source.clone()
    later[:, 20:] = (later[:, 20:] + 1) % 13
    other[:, -1] = (other[:, -1] + 1) % 13
    with torch.no_grad():
        want = model(source, target)
        assert_close(model(source, later)[:, :20], want[:, :20])
        assert (model(source, later)[:, 20] - want[:, 20]).abs().max() > 1e-6
        assert (model(other, target) - want).abs().amax(2).min() > 1e-9


@each_position
@given(cuts=st.sets(st.integers(1, 20), max_size=6))
@settings(max_examples=5, deadline=None)
def test_cached_steps_equal_one_pass(position, cuts):
    model, source, target = built(position), read(3, 17), read(3, 21, seed=1)
    cache = model.new_cache()
    with torch.no_grad():
        memory, parts = model.encode(source, PADDING), []
        for part in torch.tensor_split(target, sorted(cuts), 1):
            parts.append(model.decode(part, memory, PADDING, cache=cache))
            memory = None
        assert_close(torch.cat(parts, 1), model(source, target, PADDING))
    assert cache.length == 21


def test_the_memory_is_projected_once():
    model, cache, read_keys = built(), None, []
    for block in model.decoder:
        project = block.cross._project

        def counting(query, key, value, project=project, **arguments):
            read_keys.append(key.shape[1])
            return project(query, key, value, **arguments)

        block.cross._project = counting
    with torch.no_grad():
        memory, cache = model.encode(read(2, 7)), model.new_cache()
        for _ in range(3):
            model.decode(read(2, 1), memory, cache=cache)
    assert read_keys == [7, 7, 0, 0, 0, 0]


@pytest.mark.parametrize("memory", [True, False])
def test_a_cache_follows_a_beam(memory):
    model, source, target = built(), read(2, 7), read(2, 5, seed=1)
    # Without the memory each entry must keep its source.
    order = torch.tensor([1, 1, 0]) if memory else torch.tensor([0, 1])
    if not memory:
        source = source[:1].expand(2, -1)
    step, cache = read(len(order), 1, seed=2), model.new_cache()
    with torch.no_grad():
        model.decode(target, model.encode(source), cache=cache)
        if not memory:
            order = order.flip(0)
        cache.reorder(order, memory=memory)
        got = model.decode(step, cache=cache)
        want = model(source[order], torch.cat((target[order], step), 1))
    assert_close(got, want[:, 5:])


@pytest.mark.parametrize("position", [name for name in NAMES if name != "none"])
def test_a_position_tells_the_order_of_the_source(position):
    one, other = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 1, 2, 4]])
    begin = torch.tensor([[0]])
    with torch.no_grad():
        model, plain = built(position), built("none")
        assert (model(one, begin) - model(other, begin)).abs().max() > 1e-6
        assert_close(plain(one, begin), plain(other, begin))


@pytest.mark.parametrize("tables", [(True, True), (True, False), (False, True), (False, False)])
def test_shaw_without_keys_or_values(tables):
    keys, values = tables
    model = built(relative_keys=keys, relative_values=values)
    names = [name for name, _ in model.named_parameters() if "position" in name]
    assert len(names) == 2 * 2 * (keys + values)
    assert any(name.endswith("keys") for name in names) == keys
    assert any(name.endswith("values") for name in names) == values
    if not (keys or values):
        got, plain = model(read(2, 7), read(2, 5)), built("none")(read(2, 7), read(2, 5))
        assert torch.equal(got, plain)


def test_distance_0_has_one_row_for_all_offsets_and_tells_no_order_of_the_source():
    model = built(max_distance=0)
    tables = [p for name, p in model.named_parameters() if "position" in name]
    assert [tuple(rows.shape) for rows in tables] == [(1, 1, 8)] * 8
    one, other = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 1, 2, 4]])
    begin = torch.tensor([[0]])
    assert_close(model(one, begin), model(other, begin))


def test_the_encoder_sees_both_sides_and_the_decoder_one():
    model = built("shaw")
    assert {tuple(block.attention.position.keys.shape) for block in model.encoder} == {(1, 9, 8)}
    assert {tuple(block.attention.position.keys.shape) for block in model.decoder} == {(1, 5, 8)}
    assert all(block.cross.position is None for block in model.decoder)


def test_a_tied_matrix_is_one_parameter_and_an_untied_model_has_three():
    tied, apart = built(), built(tied=False, target_vocabulary=7)
    matrices = [name for name, p in tied.named_parameters() if p.shape == (13, 24)]
    assert matrices == ["source_embedding.weight"]
    assert apart(read(2, 3), read(2, 5) % 7).shape == (2, 5, 7)
    shapes = {
        name: tuple(apart.get_parameter(f"{name}.weight").shape)
        for name in ("source_embedding", "target_embedding", "head")
    }
    assert shapes == {
        "source_embedding": (13, 24), "target_embedding": (7, 24), "head": (7, 24)
    }  # fmt: skip


def test_embeddings_enter_the_blocks_with_variance_1():
    model, seen = built("none", width=96, heads=4, source_vocabulary=500, target_vocabulary=500), []
    for blocks in (model.encoder, model.decoder):
        blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(torch.arange(500)[None], torch.arange(500)[None])
    for x in seen:
        assert_close(x.std().item(), 1.0, rtol=0.03, atol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_predictions_start_near_uniform(tied):
    sizes = {"width": 96, "heads": 4, "source_vocabulary": 500, "target_vocabulary": 500}
    model, tokens = built("none", tied=tied, **sizes), torch.randperm(500)[None]
    logits = model(tokens, tokens[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), tokens[0, 1:])
    # A tied matrix of full size would make it 10 nats.
    assert abs(loss.item() - torch.tensor(500.0).log().item()) < 0.5


def test_residual_projections_start_smaller_with_more_of_them():
    model = built(width=96, layers=8, heads=4)
    std = 0.5 * 96**-0.5
    for blocks, count in ((model.encoder, 16), (model.decoder, 24)):
        for block in blocks:
            assert_close(block.mlp[2].weight.std().item(), std * count**-0.5, rtol=0.04, atol=0)
            assert_close(block.mlp[0].weight.std().item(), std, rtol=0.04, atol=0)
    for block in model.decoder:
        assert_close(block.cross.out_proj.weight.std().item(), std * 24**-0.5, rtol=0.04, atol=0)


@each_position
@pytest.mark.parametrize("tied", [True, False])
def test_training_reaches_every_parameter(position, tied):
    model = built(position, dropout=0.0, tied=tied).train()
    target = read(4, 33, seed=1)
    loss = cross_entropy(model(read(4, 17), target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    for name, parameter in model.named_parameters():
        # Softmax does not feel a bias that all keys share.
        if not name.endswith("in_proj_bias"):
            assert parameter.grad.abs().sum() > 0, name


def test_dropout_acts_in_training_only():
    model, source, target = built(dropout=0.5), read(2, 7), read(2, 5)
    assert torch.equal(model(source, target), model(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_goes_through_state_dict_copy_pickle_and_checkpoint(tied, tmp_path):
    model, source, target = built(tied=tied), read(2, 7), read(2, 5)
    other = built(tied=tied, seed=1)
    other.load_state_dict(model.state_dict())
    save_weights(tmp_path, model)
    save_about(tmp_path, {"model": model.config.to_dict()})
    kept = load(tmp_path, EncoderDecoder).model.double()
    for same in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(source, target), model(source, target))
    assert_close(kept(source, target), model(source, target), rtol=1e-4, atol=1e-4)


def test_a_configuration_goes_through_json():
    config = EncoderDecoderConfig(7, 8, tied=False, max_distance=0, relative_values=False)
    assert EncoderDecoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_vocabulary": 8}, "tied must be False where the vocabularies differ, got True"),
        ({"source_vocabulary": 0}, "source_vocabulary must be an integer >= 1, got 0"),
        ({"width": 130}, "width must be a multiple of heads=4, got 130"),
        ({"max_distance": -1}, "max_distance must be an integer >= 0, got -1"),
        ({"dropout": 1.0}, "dropout must be in 0 <= dropout < 1, got 1.0"),
        ({"relative_keys": 1}, "relative_keys must be True or False, got 1"),
        ({"position": "xpos"}, "position must be one of .huang., .*, got 'xpos'"),
        ({"position": ["shaw"]}, r"position must be one of .huang., .*, got \['shaw'\]"),
    ],
)
def test_bad_settings_are_named(changes, words):
    given = {"source_vocabulary": 7, "target_vocabulary": 7} | changes
    with pytest.raises(ValueError, match=f"EncoderDecoderConfig: {words}"):
        EncoderDecoderConfig(**given)


def test_missing_fields_are_named():
    with pytest.raises(
        ValueError,
        match="fields must contain source_vocabulary, target_vocabulary, got target_vocabulary",
    ):
        EncoderDecoderConfig.from_dict({"target_vocabulary": 7})


@pytest.mark.no_typecheck
def test_bad_tensors_and_caches_are_named():
    model, source, target = built(), read(2, 7), read(2, 5)
    for words, call in {
        r"source must be \(b, j\), got \(7,\)": lambda: model(source[0], target),
        r"target must be \(b, i\), got \(5,\)": lambda: model(source, target[0]),
        r"source_padding must be \(b, j\) with b=2, j=7, got \(2, 6\)": lambda: model(
            source, target, torch.zeros(2, 6, dtype=torch.bool)
        ),
        "source_padding must be boolean, got torch.float64": lambda: model(
            source, target, torch.zeros(2, 7, dtype=torch.float64)
        ),
    }.items():
        with pytest.raises(relpos.ShapeError, match=f"EncoderDecoder: {words}"):
            call()
    with pytest.raises(ValueError, match="memory must be given until a cache holds it"):
        model.decode(target, cache=model.new_cache())
    with pytest.raises(ValueError, match="cache must have 2 layers, got 3"):
        model.decode(target, model.encode(source), cache=built(layers=3).new_cache())


def test_an_error_in_a_later_layer_leaves_every_cache_as_it_was():
    model, cache = built(), None
    cache, memory = model.new_cache(), model.encode(read(2, 7))
    model.decoder[1].float()
    with pytest.raises((RuntimeError, ValueError)):
        model.decode(read(2, 3), memory, cache=cache)
    assert {layer.length for layer in (*cache.target, *cache.memory)} == {0}
