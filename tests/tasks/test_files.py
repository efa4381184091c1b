"""Files that appear whole or not at all."""

import json

import pytest

from relpos_tasks.files import PARTIAL, replacing, write_bytes, write_json, write_text


def test_files_are_written_whole_with_their_folders(tmp_path):
    write_text(tmp_path / "a" / "b.txt", "é")
    write_bytes(tmp_path / "c.bin", b"\x00")
    write_json(tmp_path / "d.json", {"x": [1, None]})
    assert (tmp_path / "a" / "b.txt").read_bytes() == "é".encode()
    assert (tmp_path / "c.bin").read_bytes() == b"\x00"
    assert json.loads((tmp_path / "d.json").read_text()) == {"x": [1, None]}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "c.bin", "d.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("before")

    def interrupted():
        with replacing(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["a folder", "a file/a.txt"])
def test_an_error_names_the_file_and_not_the_unfinished_one(tmp_path, place):
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").write_text("")
    with pytest.raises(OSError, match=place.partition("/")[0]) as error:
        write_text(tmp_path / place, "text")
    assert PARTIAL not in str(error.value)
    assert not list(tmp_path.glob(f"{PARTIAL}*"))


def test_nan_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert not list(tmp_path.iterdir())


def test_a_written_file_may_be_read_by_those_who_may_read_any(tmp_path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
