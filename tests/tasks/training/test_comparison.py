"""`Comparison`: positions, seeds, folders; what `metrics.json` says of every task's trainings."""

from pathlib import Path

import pytest
from torch import nn

from relpos_tasks.training.clock import TrainingTime
from relpos_tasks.training.comparison import Comparison, mean_and_spread
from relpos_tasks.training.trained import TrainedModel, metrics_of_training


# Its trainings give other things than models.
@pytest.mark.no_typecheck
def test_each_position_and_seed_has_a_folder_of_its_own():
    comparison = Comparison(["huang", "none"], seed=3, seeds=2)
    assert list(comparison.folders(Path("run"))) == [
        ("huang", 3, Path("run/huang")),
        ("none", 3, Path("run/none")),
        ("huang", 4, Path("run/huang-seed-4")),
        ("none", 4, Path("run/none-seed-4")),
    ]
    trained = comparison.train(Path("run"), lambda position, seed, where: (position, seed))
    assert trained == {"huang": [("huang", 3), ("huang", 4)], "none": [("none", 3), ("none", 4)]}


def test_one_more_seed_keeps_the_folders_of_the_others():
    one, two = (list(Comparison(["shaw"], seeds=n).folders(Path())) for n in (1, 2))
    assert two[:1] == one


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"positions": []}, "positions must be at least one, got none"),
        ({"positions": ["a", "b", "a"]}, "positions must differ, got 'a' twice"),
        ({"positions": ["a"], "seeds": 0}, "seeds must be in 1..100, got 0"),
        ({"positions": ["a"], "seeds": 101}, "seeds must be in 1..100, got 101"),
        ({"positions": ["a"], "seed": -1}, "seed must be in 0..4294967295, got -1"),
        ({"positions": ["a"], "seed": 2**32 - 2, "seeds": 3}, "seed must be in 0..4294967293"),
    ],
)
def test_what_cannot_be_compared_is_named(arguments, words):
    with pytest.raises(ValueError, match=f"Comparison: {words}"):
        Comparison(**arguments)


def test_metrics_are_over_all_seeds():
    curves = {"train": [(2, 1.5)], "valid": [(2, 1.25)]}
    times = TrainingTime(2.0, 0.0), TrainingTime(4.0, 0.5, True)
    models = [
        TrainedModel(nn.Identity(), curves, time, 7, 8, peak)
        for time, peak in zip(times, (100.0, 300.0), strict=True)
    ]
    unknown = TrainedModel(nn.Identity(), curves, TrainingTime(1.0, None), 9, 8)
    found = metrics_of_training({"huang": models, "none": [unknown]}, seeds=[0, 1], seconds=7.123)
    assert found == {
        "parameters": {"huang": 7, "none": 9},
        "steps_per_second": {"huang": 3.0, "none": 8.0},
        "peak_memory_mib": {"huang": 300.0, "none": None},
        "training_seconds": {"huang": 3.0, "none": 1.0},
        "cores_used_by_others": {"huang": 0.25, "none": None},
        "timed_on_a_busy_machine": {"huang": True, "none": False},
        "curves": {"huang": curves, "none": curves},
        "steps": 8,
        "seeds": [0, 1],
        "seconds": 7.12,
    }


def test_a_spread_needs_two_values():
    assert mean_and_spread([0.25]) == "0.250"
    assert mean_and_spread([0.25, 0.75]) == "0.500 ± 0.354"
