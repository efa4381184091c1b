"""A checkpoint of a chorale model with its vocabulary and pieces."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from relpos_tasks.music.model import check_source, load_music, source_of
from relpos_tasks.music.source import read_source
from relpos_tasks.training.checkpoint import CheckpointError
from tests.tasks.small import source_from, write_grid


@pytest.fixture
def changed(compared, tmp_path):
    """Makes a checkpoint whose `model.json` says something else, or with None nothing."""

    def change(part, fields):
        folder, _ = compared
        about = json.loads((folder / "huang" / "model.json").read_text())
        kept = about[part] | fields
        about[part] = {name: value for name, value in kept.items() if value is not None}
        (tmp_path / "model.json").write_text(json.dumps(about))
        shutil.copy(folder / "huang" / "model.safetensors", tmp_path)
        return tmp_path

    return change


def test_other_pieces_than_those_held_out_are_refused(compared):
    folder, _ = compared
    music = load_music(folder / "huang")
    music.about["data"]["digest"] = "elsewhere"
    with pytest.raises(CheckpointError, match="was trained on the pieces of random"):
        check_source(music, source_from(np.random.default_rng(6)), folder)


@pytest.mark.parametrize("train_on_valid", [False, True])
def test_music_is_split_as_a_model_was_trained(compared, tmp_path, train_on_valid):
    folder, _ = compared
    path = write_grid(tmp_path / "jsb.json")
    expected = read_source(path, train_on_valid=train_on_valid)
    music = load_music(folder / "huang")
    music.about["data"]["digest"] = expected.digest
    music.about["settings"]["train_on_valid"] = train_on_valid
    assert source_of(music, path, folder).about() == expected.about()


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("part", "fields", "message"),
    [
        ("data", {"kind": None}, "KeyError 'kind'"),
        ("data", {"kind": "songs"}, "data.kind must be 'chorales' or 'performances', got 'songs'"),
        ("data", {"kind": "performances"}, "data.vocabulary must stand for the model's "),
        ("data", {"vocabulary": None}, "KeyError 'vocabulary'"),
        ("data", {"vocabulary": {"lowest": 1}}, "highest"),
        ("data", {"vocabulary": {"lowest": 40, "highest": 41}}, "data.vocabulary must stand for"),
        ("data", {"vocabulary": {"lowest": 40, "highest": 80, "onsets": "yes"}}, "onsets must be"),
        ("data", {"vocabulary": {"lowest": "a", "highest": 80}}, "lowest must be an integer"),
        ("data", {"ranges": [[60, 61]] * 3}, "data.ranges must be two pitches per voice"),
        ("data", {"ranges": [[60, 61.5]] * 4}, "data.ranges must be two pitches per voice"),
        ("data", {"ranges": [[60], [60, 61], [60, 61], [60, 61]]}, "ValueError"),
        ("data", {"ranges": [[10**30, 61]] * 4}, "data.ranges must be two pitches per voice"),
        ("data", {"ranges": [[61, 60]] * 4}, "data.ranges must rise within "),
        ("data", {"ranges": [[0, 127]] * 4}, "data.ranges must rise within "),
        ("data", {"digest": None}, "KeyError 'digest'"),
        ("data", {"digest": 3}, "data.digest must be text, got 3"),
        ("settings", {"window": 10**12}, "settings.window must be at most the model's 16 tokens"),
        ("settings", {"window": "16"}, "settings.window must be an integer >= 8, got '16'"),
        ("settings", {"window": None}, "KeyError 'window'"),
        ("settings", {"train_on_valid": "no"}, "train_on_valid must be true or false, got 'no'"),
    ],
)
def test_what_was_changed_by_hand_is_refused_in_one_line(changed, part, fields, message):
    folder = changed(part, fields)
    with pytest.raises(CheckpointError, match=message) as error:
        load_music(folder)
    assert str(error.value).startswith(f"{folder}: is not a checkpoint of the music task: ")
    assert "\n" not in str(error.value)


@pytest.mark.no_typecheck
def test_composing_needs_no_lightning():
    modules = ("model", "generate", "melody", "export", "performances.generate")
    wanted = "; ".join(f"import relpos_tasks.music.{name}" for name in modules)
    check = f"{wanted}; import sys; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
