"""What performances add to a comparison: a new one, and the words of the page."""

import io
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relpos_tasks.music.composer import Composer
from relpos_tasks.music.performances.composer import PerformanceComposer
from relpos_tasks.music.performances.midi import read_performance
from relpos_tasks.music.performances.settings import PerformanceSettings
from relpos_tasks.music.performances.source import PerformanceSource
from relpos_tasks.music.performances.split import split_performances
from relpos_tasks.music.performances.tokens import encode
from relpos_tasks.music.train import build
from tests.tasks.music.performances.played import played

SETTINGS = PerformanceSettings(window=16, width=8, layers=1, heads=2, hidden=8)


@pytest.fixture(scope="module")
def source():
    rng = np.random.default_rng(0)
    split = split_performances([played(rng, 30, name=str(n)) for n in range(5)])
    return PerformanceSource("music", "0", split)


@pytest.fixture(scope="module")
def section(source):
    model = build("huang", SETTINGS, source.vocabulary)
    composer = PerformanceComposer(2.0)
    return composer.compose(model, SETTINGS, source, position="huang", seed=1)


def test_the_files_are_whole_and_as_long_as_asked_for(section, tmp_path):
    PerformanceComposer(2.0).check(tmp_path)
    assert sorted(map(str, section.files)) == ["performance.mid", "performance.wav"]
    (tmp_path / "performance.mid").write_bytes(section.files[Path("performance.mid")])
    assert read_performance(tmp_path / "performance.mid").seconds <= 2.0
    with wave.open(io.BytesIO(section.files[Path("performance.wav")])) as sound:
        assert sound.getnframes()


def test_the_page_has_the_sound_the_file_and_the_piano_roll(section):
    note, player, roll = section.blocks
    assert "notes in 2 seconds by the model that was best" in note.text
    assert player.wav == section.files[Path("performance.wav")]
    assert player.download.content == section.files[Path("performance.mid")]
    assert "<svg" in roll.svg


def test_the_page_turns_tokens_into_seconds(source):
    tokens = sum(len(encode(one)) - 1 for one in source.split.held_out)
    seconds = sum(one.seconds for one in source.split.held_out)
    said = " ".join(PerformanceComposer().words(SETTINGS, source).protocol)
    assert f"A second of the held-out music has {tokens / seconds:.1f} tokens" in said


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (None, "Every token of the held-out performances is scored once"),
        (99, "of as many of them as give at least 64 each) is scored once"),
    ],
)
def test_the_page_says_how_it_was_measured(source, most, words):
    said = PerformanceComposer().words(replace(SETTINGS, held_out_tokens=most), source)
    assert words in " ".join(said.protocol)
    assert str(source.split) in " ".join(said.protocol)
    assert said.learned == "the MIDI files of the folder music"


def test_it_is_a_composer_like_that_of_chorales():
    assert isinstance(PerformanceComposer(), Composer)
    assert PerformanceComposer(2.5).length == "2.5 seconds"


def test_other_lengths_are_refused():
    with pytest.raises(ValueError, match=r"--seconds: must be in 0\.01\.\.900, got 1000"):
        PerformanceComposer(1000.0)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "performance.wav").mkdir()
    with pytest.raises(ValueError, match=r"performance.wav: cannot be written, there is a folder"):
        PerformanceComposer().check(tmp_path)


def test_the_page_counts_one_performance_and_many(source):
    words = PerformanceComposer().words(SETTINGS, source)
    assert [words.counted(number) for number in (0, 1, 2)] == [
        "0 performances", "1 performance", "2 performances",
    ]  # fmt: skip
