"""A performance as MIDI and sound: both files or none."""

import numpy as np
import pytest

from relpos_tasks import files
from relpos_tasks.music.performances.export import performance_stem, write_performance
from tests.tasks.music.performances.played import played

PLAYED = played(np.random.default_rng(0), 9)


@pytest.mark.parametrize("name", ["a", "a.mid", "a.wav"])
def test_a_known_ending_is_left_out(tmp_path, name):
    stem = performance_stem(tmp_path / name)
    write_performance(stem, PLAYED)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.mid", "a.wav"]


@pytest.mark.parametrize("taken", ["a.mid", "a.wav"])
def test_a_taken_name_is_refused(tmp_path, taken):
    (tmp_path / taken).mkdir()
    with pytest.raises(ValueError, match=f"{taken}: cannot be written, there is a folder"):
        performance_stem(tmp_path / "a")


def test_a_failure_leaves_no_file(tmp_path, monkeypatch):
    real, replaced = files.os.replace, []

    def full(source, target):
        if replaced:
            raise OSError(28, "No space left on device")
        replaced.append(target)
        real(source, target)

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_performance(tmp_path / "a", PLAYED)
    assert not list(tmp_path.iterdir())
