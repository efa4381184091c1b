"""`compare`: the files and numbers that a run leaves."""

import json
from statistics import fmean

import pytest
from lightning.pytorch.utilities import rank_zero_only

from relpos_tasks.vision.canvas import TESTS
from relpos_tasks.vision.compare import compare
from relpos_tasks.vision.evaluate import accuracy_by_test
from relpos_tasks.vision.model import load_vision
from tests.tasks.small import CPU
from tests.tasks.vision.small import COMPARISON, small


def test_a_run_leaves_these_files_and_no_others(compared):
    folder, _ = compared
    assert sorted(file.name for file in folder.iterdir()) == [
        "absolute",
        "absolute-seed-4",
        "grid",
        "grid-seed-4",
        "machine.json",
        "metrics.json",
        "none",
        "none-seed-4",
        "report.html",
    ]
    assert not list(folder.rglob(".part-*"))


def test_metrics_have_the_promised_names(compared, digits):
    folder, _ = compared
    metrics = json.loads((folder / "metrics.json").read_text())
    assert list(metrics["held_out"]) == ["none", "absolute", "grid"]
    for measured in metrics["held_out"].values():
        assert list(measured) == ["accuracy", *TESTS, "by_seed"]
        assert measured["accuracy"] == measured["same"]
        for test in TESTS:
            assert measured[test] == fmean(one[test] for one in measured["by_seed"])
    assert (metrics["steps"], metrics["seeds"], metrics["canvases"]) == (4, [3, 4], 3)
    assert metrics["settings"]["training"]["steps"] == metrics["steps"]
    assert metrics["data"]["digest"] == digits.digest
    assert metrics["model"]["width"] == small().width
    assert metrics["seconds"] > 0
    for name in ("parameters", "training_seconds", "steps_per_second", "curves"):
        assert list(metrics[name]) == ["none", "absolute", "grid"]


@pytest.mark.parametrize("name", ["none", "grid", "absolute-seed-4"])
def test_a_checkpoint_measures_as_the_model_did(compared, digits, name):
    folder, results = compared
    position, _, seed = name.partition("-seed-")
    measured = accuracy_by_test(load_vision(folder / name).model, digits.held_out, count=3)
    assert measured == results.held_out[position][1 if seed else 0]


def test_a_finished_comparison_finds_the_same_again(compared, digits):
    folder, results = compared
    again = compare(small(), COMPARISON, digits, folder=folder, devices=CPU, say=lambda _: None)
    assert again is not None
    assert again.held_out == results.held_out


def test_processes_of_other_devices_write_nothing(compared, digits, monkeypatch):
    folder, _ = compared
    before = (folder / "metrics.json").read_bytes()
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    found = compare(small(), COMPARISON, digits, folder=folder, devices=CPU, say=lambda _: None)
    assert found is None
    assert (folder / "metrics.json").read_bytes() == before
