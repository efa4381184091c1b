"""`compare`: the files and numbers that a run leaves."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from lightning.pytorch.utilities import rank_zero_only

from relpos_tasks.music.chorale_composer import ChoraleComposer
from relpos_tasks.music.compare import compare
from relpos_tasks.music.model import check_source, load_music
from relpos_tasks.music.windows import nats_per_token
from relpos_tasks.report import comparing
from relpos_tasks.training.comparison import Comparison
from tests.tasks.small import COMPARISON, CPU, small


def test_a_run_leaves_these_files_and_no_others(compared):
    folder, _ = compared
    assert sorted(file.name for file in folder.iterdir()) == [
        "absolute",
        "absolute-seed-4",
        "chorale.mid",
        "chorale.musicxml",
        "chorale.wav",
        "huang",
        "huang-seed-4",
        "machine.json",
        "metrics.json",
        "report.html",
        "shaw",
        "shaw-seed-4",
    ]
    assert not list(folder.rglob(".part-*"))


def test_metrics_have_the_promised_names(compared, source):
    folder, results = compared
    metrics = json.loads((folder / "metrics.json").read_text())
    assert list(metrics["held_out"]) == COMPARISON.positions
    assert set(metrics["counting"]) == {"previous pitch", "+ beat", "+ voice above"}
    for position, measured in metrics["held_out"].items():
        one, other = measured["nats_by_seed"]
        assert one != other
        assert measured["nats"] == (one + other) / 2
        assert list(metrics["lengths"][position]) == ["16", "32", "64"]
    for name in (
        "parameters", "steps_per_second", "peak_memory_mib", "training_seconds",
        "cores_used_by_others", "timed_on_a_busy_machine", "curves",
    ):  # fmt: skip
        assert list(metrics[name]) == COMPARISON.positions
    assert (metrics["steps"], metrics["seeds"]) == (4, [3, 4])
    assert metrics["settings"]["training"]["steps"] == metrics["steps"]
    assert metrics["data"]["digest"] == source.digest
    assert metrics["model"]["width"] == small().width
    assert metrics["seconds"] > 0
    assert metrics["pieces"] == len(source.split.held_out)
    assert metrics["long_pieces"] == 3
    assert results.held_out["huang"] == metrics["held_out"]["huang"]["nats_by_seed"]


@pytest.mark.parametrize("position", ["huang", "absolute"])
def test_a_checkpoint_measures_as_the_model_did(compared, source, position):
    folder, results = compared
    music = load_music(folder / position)
    check_source(music, source, folder)
    measured = nats_per_token(music.model, source.held_out(), window=music.window)
    assert measured == results.held_out[position][0]
    np.testing.assert_array_equal(music.ranges, source.ranges)


@pytest.mark.parametrize(("bars", "words"), [(1, "1 bar"), (2, "2 bars")])
def test_a_length_is_told_in_bars(bars, words):
    assert ChoraleComposer(bars).length == words


def compare_again(source, folder):
    composer, quiet = ChoraleComposer(bars=2), {"say": lambda line: None}
    return compare(
        small(steps=4), COMPARISON, source, composer, folder=folder, devices=CPU, **quiet
    )


def test_a_finished_comparison_writes_the_same_again(compared, source):
    folder, results = compared
    before = {name: (folder / name).read_bytes() for name in ("chorale.mid", "chorale.musicxml")}
    again = compare_again(source, folder)
    assert again is not None
    assert again.held_out == results.held_out
    assert before == {name: (folder / name).read_bytes() for name in before}


def test_without_its_page_no_music_is_written(compared, source, tmp_path, monkeypatch):
    def drawn(page):
        raise KeyboardInterrupt

    folder = shutil.copytree(compared[0], tmp_path / "run")
    for name in ("report.html", "chorale.mid", "chorale.musicxml", "chorale.wav"):
        (folder / name).write_text("of another comparison")
    monkeypatch.setattr(comparing, "render", drawn)
    with pytest.raises(KeyboardInterrupt):
        compare_again(source, folder)
    for name in ("report.html", "chorale.mid", "chorale.musicxml", "chorale.wav"):
        assert (folder / name).read_text() == "of another comparison"


@pytest.mark.parametrize("positions", [["absolute", "huang"], ["huang", "absolute"]])
def test_models_that_trained_on_the_validation_pieces_are_not_chosen_by_them(
    source, tmp_path, positions
):
    said = []
    compare(
        replace(small(steps=4), train_on_valid=True),
        Comparison(positions, seed=3, seeds=1),
        source,
        ChoraleComposer(bars=1),
        folder=tmp_path,
        devices=CPU,
        say=said.append,
    )
    assert said[-1].endswith(f"({positions[-1]})")
    assert "by the last of the models compared" in (tmp_path / "report.html").read_text("utf-8")


def test_processes_of_other_devices_write_nothing(compared, source, monkeypatch):
    folder, _ = compared
    before = (folder / "metrics.json").read_bytes()
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    assert compare_again(source, folder) is None
    assert (folder / "metrics.json").read_bytes() == before
