"""Presets and the options that take their place."""

import pytest

from relpos_tasks.models.map_positions import MAP_POSITIONS
from relpos_tasks.vision.settings import PRESETS, preset
from relpos_tasks.vision.train import build


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole(name):
    found = preset(name)
    assert found == PRESETS[name]
    assert set(found.compared) <= set(found.positions)
    model = build(found.compared[-1], found)
    assert model.config.layers == found.layers


def test_every_scheme_of_maps_can_be_compared_and_bottlenecks_can_convolve():
    assert preset("default").positions == list(MAP_POSITIONS)
    assert preset("botnet").positions == [*MAP_POSITIONS, "convolution"]
    for position in preset("default").positions:
        build(position, preset("default"))


def test_options_take_the_presets_place():
    found = preset("tiny", steps=3, batch=5, seed=7)
    assert (found.training.steps, found.training.batch, found.training.seed) == (3, 5, 7)
    assert found.width == PRESETS["tiny"].width
    assert found.with_seed(9).training.seed == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "huge"}, "name must be one of default, tiny, botnet, paper, got 'huge'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 2**21}, "steps must be at most 1048576, got 2097152"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"seed": -1}, r"seed must be in 0\.\.4294967295, got -1"),
    ],
)
def test_what_is_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        preset(**{"name": "tiny"} | options)
