"""Presets and the options that take their place."""

import pytest

from relpos_tasks.translation.positions import position_options
from relpos_tasks.translation.settings import CHORALE_PRESETS, PRESETS, preset


@pytest.mark.parametrize("presets", [PRESETS, CHORALE_PRESETS], ids=["text", "chorales"])
def test_presets_are_whole(presets):
    for name, expected in presets.items():
        found = preset(name, presets=presets)
        assert found == expected
        for position in found.compared:
            position_options(position)
        assert found.training.valid_every <= found.training.steps
        # The longest pair must fit into a batch.
        assert found.longest_target <= found.step_tokens // 2


def test_options_take_the_presets_place():
    found = preset("tiny", steps=3, batch=500, seed=7)
    assert (found.training.steps, found.training.batch, found.training.seed) == (3, 500, 7)
    assert found.width == PRESETS["tiny"].width
    assert found.with_seed(9).training.seed == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "huge"}, "name must be one of default, tiny, paper, got 'huge'"),
        (
            {"name": "paper", "presets": CHORALE_PRESETS},
            "name must be one of default, tiny, got 'paper'",
        ),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"seed": -1}, r"seed must be in 0\.\.4294967295, got -1"),
    ],
)
def test_what_is_out_of_range_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        preset(**{"name": "tiny"} | options)
