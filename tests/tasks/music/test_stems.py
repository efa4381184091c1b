"""Names of a new piece's files."""

import pytest

from relpos_tasks.music.stems import checked_stem, files_of


def test_one_of_the_endings_is_left_out(tmp_path):
    assert checked_stem(tmp_path / "a.mid", example="x", endings=(".mid",)) == tmp_path / "a"
    assert checked_stem(tmp_path / "a.wav", example="x", endings=(".mid",)).name == "a.wav"


def test_a_name_that_has_dots_keeps_them(tmp_path):
    assert [f.name for f in files_of(tmp_path / "op.1", (".mid", ".wav"))] == [
        "op.1.mid",
        "op.1.wav",
    ]


def test_the_example_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder, not a file's name; try .*/tune"):
        checked_stem(tmp_path, example="tune")
