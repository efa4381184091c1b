"""A chorale as MIDI, MusicXML and sound: all three files or none."""

import re
from pathlib import Path

import numpy as np
import pytest

from relpos_tasks import files
from relpos_tasks.music.export import chorale_stem, write_chorale
from tests.tasks.music.pieces import piece_from

PIECE = piece_from(np.random.default_rng(0), 9)


@pytest.mark.parametrize("name", ["tune", "tune.mid", "tune.musicxml", "tune.wav"])
def test_a_known_ending_is_left_out(tmp_path, name):
    assert chorale_stem(tmp_path / name) == tmp_path / "tune"


def test_another_ending_and_a_missing_folder_are_kept(tmp_path):
    stem = chorale_stem(tmp_path / "new" / "op.1")
    write_chorale(stem, PIECE)
    names = sorted(file.name for file in stem.parent.iterdir())
    assert names == ["op.1.mid", "op.1.musicxml", "op.1.wav"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", ".: must be the files' name without ending"),
        (".", ".: must be the files' name without ending"),
        ("..", "..: must be the files' name without ending"),
        ("folder/..", "folder/..: must be the files' name without ending"),
        ("folder", "folder: is a folder, not a file's name; try folder/chorale"),
        ("folder.mid", "folder.mid: is a folder"),
        ("file/new", "file/new.musicxml: cannot be written, file is not a folder"),
        ("file/a/new", "file/a/new.musicxml: cannot be written, file is not a folder"),
        ("taken", "taken.wav: cannot be written, there is a folder of this name"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "folder.mid", "taken.wav"):
        Path(folder).mkdir()
    Path("file").write_text("")
    with pytest.raises(ValueError, match=re.escape(message)):
        chorale_stem(Path(name))


def test_all_three_files_are_written_or_none(tmp_path, monkeypatch):
    replaced = files.os.replace

    def full(source, target):
        if target.suffix == ".wav":
            raise OSError(28, "No space left on device", str(source))
        return replaced(source, target)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "tune.wav"))):
        write_chorale(tmp_path / "tune", PIECE)
    assert not list(tmp_path.iterdir())
