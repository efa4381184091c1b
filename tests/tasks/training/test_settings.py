"""What takes the place of a preset's budget, and which settings of two runs differ."""

import pytest

from relpos_tasks.training.settings import TrainingSettings, settings_differ, with_budget


def test_what_is_not_given_stays():
    settings = TrainingSettings(steps=7, batch=3, seed=5, warmup=2)
    assert with_budget(settings) == settings
    changed = with_budget(settings, steps=9, seed=0)
    assert (changed.steps, changed.batch, changed.seed, changed.warmup) == (9, 3, 0, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 2**20 + 1}, "steps must be at most 1048576, got 1048577"),
        ({"batch": -1}, "batch must be at least 1, got -1"),
        ({"seed": -1}, r"seed must be in 0\.\.4294967295, got -1"),
        ({"seed": 2**32}, r"seed must be in 0\.\.4294967295, got 4294967296"),
    ],
)
def test_a_budget_out_of_range_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        with_budget(TrainingSettings(), **given)


def test_the_first_setting_that_differs_is_named():
    before = {"format": 1, "versions": {"torch": "1"}, "settings": {"batch": 2, "steps": 5}}
    assert settings_differ(before, before | {"format": 2, "versions": {}}) is None
    after = before | {"settings": {"batch": 2, "steps": 6}}
    assert settings_differ(before, after) == "settings.steps was 5, now 6"


def test_an_option_that_is_off_is_one_that_an_earlier_run_lacks():
    assert settings_differ({"a": 1}, {"a": 1, "later": False}) is None
    assert settings_differ({"a": 1}, {"a": 1, "later": True}) == "later was None, now True"
    assert settings_differ({"a": 1}, {"a": 1, "later": 0}) == "later was None, now 0"
