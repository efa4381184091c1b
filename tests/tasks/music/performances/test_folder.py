"""Folders of MIDI files: which are read, what is left out, and the notes that are kept."""

import shutil

import numpy as np
import pytest

from relpos_tasks.music.performances import folder as module
from relpos_tasks.music.performances.folder import midi_files, read_folder
from relpos_tasks.music.score_lines import ScoreError
from tests.tasks.music.performances.played import midi_file, write_performances

NOTE = midi_file([(0, 480, 60, 64)])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def music(tmp_path):
    folder = tmp_path / "music"
    for name in ("b.MID", "a/c.midi", "a/.d.mid", ".e/f.mid", "g.txt", "a/z.Midi"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(NOTE)
    return folder


def test_files_are_found_in_all_folders_and_any_case_but_hidden_ones(music):
    found = [file.relative_to(music).as_posix() for file in midi_files(music)]
    assert found == ["a/c.midi", "a/z.Midi", "b.MID"]


def test_performances_are_named_as_their_paths(music):
    assert [one.name for one in read_folder(music)] == ["a/c.midi", "a/z.Midi", "b.MID"]


def test_broken_files_are_named_and_left_out(music):
    (music / "bad.mid").write_bytes(b"no music")
    with pytest.warns(UserWarning, match="left out: ") as warned:
        assert len(read_folder(music)) == 3
    (line,) = (str(one.message) for one in warned)
    assert line == f"left out: {music}/bad.mid: must be a MIDI file, and begins like none"


def test_many_broken_files_are_counted(music):
    for index in range(20):
        (music / f"bad-{index}.mid").write_bytes(b"no music")
    with pytest.warns(UserWarning, match="left out: ") as warned:
        read_folder(music)
    assert len(warned) == 9
    assert str(warned[-1].message) == "left out: 12 more of 23 files"


def test_notes_are_kept_and_say_the_same(music, monkeypatch):
    (music / "bad.mid").write_bytes(b"no music")
    with pytest.warns(UserWarning, match="left out: ") as first:
        before = read_folder(music)
    monkeypatch.setattr(module, "read_performance", lambda *_, **__: pytest.fail("read again"))
    with pytest.warns(UserWarning, match="left out: ") as second:
        after = read_folder(music)
    assert [str(one.message) for one in first] == [str(one.message) for one in second]
    for one, other in zip(before, after, strict=True):
        assert one.name == other.name
        for column in ("starts", "ends", "pitches", "velocities"):
            np.testing.assert_array_equal(getattr(one, column), getattr(other, column))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "new.mid").write_bytes(NOTE),
        lambda folder: (folder / "b.MID").unlink(),
        lambda folder: (folder / "b.MID").write_bytes(NOTE + NOTE),
        lambda folder: shutil.move(folder / "b.MID", folder / "h.mid"),
    ],
)
def test_a_changed_folder_is_read_again(music, change, monkeypatch):
    read_folder(music)
    change(music)
    read, real = [], module.read_performance
    monkeypatch.setattr(
        module, "read_performance", lambda path, name: read.append(name) or real(path, name=name)
    )
    after = read_folder(music)
    assert read == [one.name for one in after]


def test_a_file_that_could_not_be_opened_is_tried_again(music, monkeypatch):
    def closed(path):
        if path.name == "b.MID":
            raise PermissionError(13, "Permission denied")
        return path.read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr("relpos_tasks.music.performances.midi.read_whole", closed)
        with pytest.warns(UserWarning, match=r"b\.MID: cannot be read: Permission denied"):
            assert len(read_folder(music)) == 2
    assert len(read_folder(music)) == 3


def test_a_broken_cache_is_written_anew(music, tmp_path):
    read_folder(music)
    (kept,) = (tmp_path / "cache" / "relpos").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:100])
    assert len(read_folder(music)) == 3
    assert len(kept.read_bytes()) == len(whole)


def test_without_a_cache_nothing_is_written(music, tmp_path):
    assert len(read_folder(music, cache=False)) == 3
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_music_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScoreError, match=r"must hold MIDI files \(.mid or .midi\), got none"):
        read_folder(tmp_path / "empty")
    (tmp_path / "empty" / "words.mid").write_text("words")
    with (
        pytest.warns(UserWarning, match="words.mid"),
        pytest.raises(ScoreError, match="holds no MIDI file that can be used, got 1 file"),
    ):
        read_folder(tmp_path / "empty")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ScoreError, match=r"no: cannot be read: No such file or directory"):
        read_folder(tmp_path / "no")


def test_a_name_that_is_no_text_can_be_read_and_kept(tmp_path):
    folder = write_performances(tmp_path / "a\udcff", 2)
    (folder / "b\udcff.mid").write_bytes(NOTE)
    for _ in range(2):
        assert read_folder(folder)[0].name == "b\udcff.mid"
