"""Presets and the options that take their place."""

from dataclasses import replace

import pytest

from relpos_tasks.translation.positions import position_options
from relpos_tasks.translation.settings import CHORALE_PRESETS, PRESETS, TextSettings, preset


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


def test_the_length_test_has_its_own_longest_sentence_however_it_is_made():
    whole, short = TextSettings(), TextSettings(length_test=True)
    assert (whole.longest, whole.recorded()["longest"]) == (60, 60)
    assert replace(PRESETS["default"], length_test=True) == short
    for one in (short, replace(PRESETS["paper"], length_test=True)):
        assert (one.longest, one.longest_target, one.recorded()["longest"]) == (13, 14, 13)


def test_what_is_recorded_has_these_names_and_no_search():
    """A run goes on only where these are what they were."""
    names = ["label_smoothing", "training", "longest", "length_test", "long_sentences"]
    assert list(TextSettings().recorded()) == names
    assert list(CHORALE_PRESETS["default"].recorded()) == ["label_smoothing", "training", "window"]
    assert TextSettings().search() == {"beam": 4, "alpha": 0.6}
    assert CHORALE_PRESETS["tiny"].search() == {"beam": 2}


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
