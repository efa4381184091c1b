"""The presets for performances."""

import pytest

from relpos_tasks.music.performances.settings import PRESETS, PerformanceSettings
from relpos_tasks.music.settings import preset


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_can_be_trained(name):
    found = preset(name, presets=PRESETS)
    assert isinstance(found, PerformanceSettings)
    assert found.window % 8 == 0
    assert found.width % found.heads == 0
    assert found.training.steps % found.training.valid_every == 0


def test_what_is_given_replaces_what_the_preset_has():
    found = preset("tiny", presets=PRESETS, steps=3, window=64, seed=5)
    assert (found.training.steps, found.window, found.training.seed) == (3, 64, 5)
    assert found.valid_tokens == PRESETS["tiny"].valid_tokens


def test_a_checkpoint_says_how_much_was_measured_on():
    assert PRESETS["tiny"].recorded()["held_out_tokens"] == 2**14
    assert PRESETS["tiny"].recorded()["valid_tokens"] == 2**12
    assert "window" in PRESETS["tiny"].recorded()


def test_the_sizes_for_a_gpu_are_those_of_the_paper():
    maestro = PRESETS["maestro"]
    assert (maestro.layers, maestro.window, maestro.held_out_tokens) == (6, 2048, None)


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="must be one of default, tiny, maestro, got 'paper'"):
        preset("paper", presets=PRESETS)
