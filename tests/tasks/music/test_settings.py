"""Presets and the options that take their place."""

import pytest

from relpos_tasks.models import POSITIONS
from relpos_tasks.music.settings import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole(name):
    found = preset(name)
    assert found == PRESETS[name]
    assert found.width % found.heads == 0
    assert set(found.compared) <= set(POSITIONS)


def test_the_literatures_preset_trains_on_what_it_was_chosen_on_unless_told_otherwise():
    assert preset("literature").train_on_valid
    assert not preset("literature", train_on_valid=False).train_on_valid
    assert not preset("default").train_on_valid
    assert preset("default", train_on_valid=True).recorded()["train_on_valid"]


def test_the_literatures_preset_has_muon_averages_weights_and_compares_two():
    found = preset("literature", steps=7)
    assert (found.training.averaging, found.training.steps) == (0.999, 7)
    assert found.recorded()["training"]["averaging"] == 0.999
    assert list(found.compared) == ["absolute", "relative-logits"]
    assert found.training.muon_learning_rate == 3e-3
    plain = preset("default").training
    assert plain.averaging is None
    assert plain.muon_learning_rate is None


def test_options_take_the_presets_place():
    found = preset("tiny", steps=3, batch=5, window=24, seed=7)
    assert (found.training.steps, found.training.batch, found.training.seed) == (3, 5, 7)
    assert found.window == 24
    assert found.width == PRESETS["tiny"].width


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "huge"}, "name must be one of default, tiny, literature, paper, got 'huge'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"seed": -1}, r"seed must be in 0\.\.4294967295, got -1"),
        ({"seed": 2**32}, r"seed must be in 0\.\.4294967295, got 4294967296"),
        ({"window": 20}, "window must be a positive multiple of 8, got 20"),
    ],
)
def test_what_is_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        preset(**{"name": "tiny"} | options)
