"""`relpos music ...` as it is typed: what each command prints and writes."""

import json
import xml.etree.ElementTree as ET

import pytest

from relpos_tasks.cli.music import Position
from relpos_tasks.cli.music_options import Preset
from relpos_tasks.models import POSITIONS
from relpos_tasks.music.melody import read_melody
from relpos_tasks.music.settings import PRESETS
from tests.tasks.small import QUICK, write_chords, write_melody


def test_compare_prints_the_table_and_the_report(compared_folder):
    folder, done = compared_folder
    assert "held out, nats per token" in done.stdout
    for name in ("huang", "absolute", "counting: + voice above"):
        assert name in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {folder / 'report.html'}"
    assert (folder / "report.html").is_file()
    assert "Warning" not in done.stderr


def test_evaluate_measures_as_compare_did(compared_folder, grid, relpos):
    folder, done = compared_folder
    status, out, _ = relpos("music", "evaluate", folder / "huang", "--data", grid, "--lengths")
    assert status == 0
    (measured,) = (line.split()[-1] for line in done.stdout.splitlines() if "huang  " in line)
    assert f"huang, 16 tokens {measured}" in " ".join(out.split())
    assert "64 tokens" in out


def test_what_settings_are_chosen_on_is_measured_on_request(compared_folder, grid, relpos):
    folder, _ = compared_folder
    metrics = json.loads((folder / "metrics.json").read_text())
    _, watched = metrics["curves"]["huang"]["valid"][-1]
    status, out, _ = relpos("music", "evaluate", folder / "huang", "--data", grid, "--valid")
    assert status == 0
    title, nats = out.splitlines()
    assert title == "validation, nats per token"
    assert float(nats.split()[-1]) == pytest.approx(watched, abs=1e-4)


def test_generate_writes_three_files(compared_folder, relpos, tmp_path):
    folder, _ = compared_folder
    out = tmp_path / "new" / "tune"
    status, said, _ = relpos("music", "generate", folder / "huang", "--bars", 1, "--out", out)
    assert status == 0
    assert said == f"wrote {out}.mid, {out}.musicxml and {out}.wav (4 quarters)\n"
    assert sorted(file.name for file in out.parent.iterdir()) == [
        "tune.mid",
        "tune.musicxml",
        "tune.wav",
    ]


def test_a_name_that_is_no_text_is_escaped_where_it_is_written(compared_folder, relpos, tmp_path):
    folder, _ = compared_folder
    out = tmp_path / "a\x01\udcff"
    status, said, err = relpos("music", "generate", folder / "huang", "--bars", 1, "--out", out)
    assert (status, err) == (0, "")
    assert f"{tmp_path}/a\x01\\udcff.wav" in said
    assert ET.parse(f"{out}.musicxml").findtext("work/work-title") == "a??"


def test_generate_keeps_a_melody(compared_folder, relpos, tmp_path):
    folder, _ = compared_folder
    pitches = [67] * 4 + [69] * 4 + [71] * 2 + [69] * 2 + [67] * 8
    tune = write_melody(tmp_path / "tune.mid", pitches)
    weights = folder / "huang" / "model.safetensors"
    assert relpos("music", "generate", weights, "--melody", tune, "--out", tmp_path / "new")[0] == 0
    assert read_melody(tmp_path / "new.mid").pitches.tolist() == pitches


@pytest.mark.parametrize(
    ("pitches", "said"),
    [
        ([(67,), (69,)], ""),
        (
            [(67, 64), (69,)],
            "{tune}: 1 note is not sung: a sixteenth holds one note, of a chord the highest\n",
        ),
        (
            [(67, 64), (69, 64, 60)],
            "{tune}: 3 notes are not sung: a sixteenth holds one note, of a chord the highest\n",
        ),
    ],
    ids=["none", "one", "three"],
)
def test_generate_says_how_many_notes_of_a_melody_are_not_sung(
    pitches, said, compared_folder, relpos, tmp_path
):
    folder, _ = compared_folder
    tune = write_chords(tmp_path / "tune.mid", pitches)
    given = ["--melody", tune, "--out", tmp_path / "new"]
    status, _, err = relpos("music", "generate", folder / "huang", *given)
    assert (status, err) == (0, said.format(tune=tune))


def test_the_seed_of_generate_speaks_of_what_it_draws(relpos, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = relpos("music", "generate", "--help")[1]
    assert "the same seed gives the same music" in said
    assert "data order" not in said


def test_plot_draws_what_compare_trained(compared_folder, grid, relpos, tmp_path):
    folder, _ = compared_folder
    tables, maps = tmp_path / "tables.svg", tmp_path / "maps.png"
    assert relpos("plot", "tables", folder / "absolute", "--out", tables)[0] == 0
    assert relpos("plot", "attention", folder / "huang", "--data", grid, "--out", maps)[0] == 0
    assert sorted(tmp_path.iterdir()) == [maps, tables]


def test_train_goes_on_with_its_own_run(grid, relpos, tmp_path):
    command = ["music", "train", "--position", "none", "--data", grid, "--runs", tmp_path, *QUICK]
    status, out, _ = relpos(*command)
    assert (status, out.splitlines()[-1]) == (
        0,
        f"checkpoint: {tmp_path / 'literature-tiny' / 'none'}",
    )
    assert relpos(*command)[:2] == (0, out)
    status, _, err = relpos(*command, "--seed", "1")
    assert status == 2
    assert "other settings (settings.training.seed was 0, now 1); choose another --name" in err


def test_the_preset_says_what_is_compared_by_default(relpos, monkeypatch):
    asked = []

    def refused(settings, comparison, *_, **__):
        asked.append(list(comparison.positions))
        raise ValueError("enough")

    monkeypatch.setattr("relpos_tasks.music.compare.check_comparison", refused)
    for given in ([], ["--preset=literature"], ["--preset=literature", "--positions=shaw"]):
        assert relpos("music", "compare", *given)[::2] == (2, "relpos: enough\n")
    assert asked == [["absolute", "huang", "shaw"], ["absolute", "relative-logits"], ["shaw"]]


def test_every_preset_and_position_can_be_asked_for():
    assert set(PRESETS) <= set(Preset)
    assert list(Position) == list(POSITIONS)


@pytest.mark.parametrize("command", ["compare", "train"])
def test_compare_and_train_have_the_same_options_of_training(command, relpos, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = relpos("music", command, "--help")[1]
    for option in (
        "data", "preset", "steps", "batch", "window", "seed", "name", "runs", "accelerator",
        "devices", "precision", "max-distance", "random-start", "context-parallel",
    ):  # fmt: skip
        assert f"--{option} " in said
    for option, only in (("bars", "compare"), ("positions", "compare"), ("seeds", "compare")):
        assert (f"--{option} " in said) == (command == only)
    assert ("*  --position " in said) == (command == "train")
