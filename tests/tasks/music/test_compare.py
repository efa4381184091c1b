"""`compare`: the files and numbers that a run leaves."""

import json

import numpy as np
import pytest
from lightning.pytorch.utilities import rank_zero_only

from relpos_tasks.music.compare import compare
from relpos_tasks.music.evaluate import held_out_nats
from relpos_tasks.music.model import check_source, load_music
from tests.tasks.small import CPU, small


def test_a_run_leaves_these_files_and_no_others(compared):
    folder, _ = compared
    assert sorted(file.name for file in folder.iterdir()) == [
        "absolute",
        "chorale.mid",
        "chorale.musicxml",
        "chorale.wav",
        "huang",
        "machine.json",
        "metrics.json",
        "report.html",
    ]
    assert not list(folder.rglob(".part-*"))


def test_metrics_have_the_promised_names(compared):
    folder, results = compared
    metrics = json.loads((folder / "metrics.json").read_text())
    assert set(metrics["held_out"]) == {"huang", "absolute", "counting"}
    assert set(metrics["held_out"]["counting"]) == {"previous pitch", "+ beat", "+ voice above"}
    for position in ("huang", "absolute"):
        assert isinstance(metrics["held_out"][position], float)
        assert list(metrics["lengths"][position]) == ["16", "32", "64"]
    for name in ("training_seconds", "cores_used_by_others", "timed_on_a_busy_machine"):
        assert list(metrics[name]) == ["huang", "absolute"]
    assert metrics["steps"] == 4
    assert metrics["seconds"] > 0
    assert metrics["long_pieces"] == 3
    assert results.held_out["huang"] == metrics["held_out"]["huang"]


@pytest.mark.parametrize("position", ["huang", "absolute"])
def test_a_checkpoint_measures_as_the_model_did(compared, source, position):
    folder, results = compared
    music = load_music(folder / position)
    check_source(music, source, folder)
    measured = held_out_nats(
        music.model, source.split.held_out, music.vocabulary, window=music.window
    )
    assert measured == results.held_out[position]
    np.testing.assert_array_equal(music.ranges, source.ranges)


def test_a_finished_comparison_writes_the_same_again(compared, source):
    folder, results = compared
    before = {name: (folder / name).read_bytes() for name in ("chorale.mid", "chorale.musicxml")}
    again = compare(small(steps=4), source, folder=folder, bars=2, devices=CPU, say=lambda _: None)
    assert again is not None
    assert again.held_out == results.held_out
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_processes_of_other_devices_write_nothing(compared, source, monkeypatch):
    folder, _ = compared
    before = (folder / "metrics.json").read_bytes()
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    assert compare(small(steps=4), source, folder=folder, devices=CPU, say=lambda _: None) is None
    assert (folder / "metrics.json").read_bytes() == before
