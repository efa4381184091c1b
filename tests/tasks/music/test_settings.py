"""Presets and the options that take their place."""

import pytest

from relpos_tasks.music.settings import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole(name):
    found = preset(name)
    assert found == PRESETS[name]
    assert found.width % found.heads == 0


def test_options_take_the_presets_place():
    found = preset("tiny", steps=3, batch=5, window=24, seed=7)
    assert (found.training.steps, found.training.batch, found.training.seed) == (3, 5, 7)
    assert found.window == 24
    assert found.width == PRESETS["tiny"].width


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "huge"}, "name must be one of default, tiny, paper, got 'huge'"),
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
