"""A folder of performances as what training and measuring ask of it."""

import json
import shutil

import numpy as np
import pytest

from relpos_tasks.music.performances.baselines import counting_baselines
from relpos_tasks.music.performances.settings import PRESETS
from relpos_tasks.music.performances.source import PerformanceSource, read_performances
from relpos_tasks.music.performances.tokens import encode
from relpos_tasks.music.score_lines import ScoreError
from relpos_tasks.music.source import MusicSource, read_source
from tests.tasks.music.performances.played import write_performances


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    return write_performances(tmp_path / "music", 12)


def test_a_folder_is_a_source_of_performances(folder):
    source = read_source(folder)
    assert isinstance(source, PerformanceSource)
    assert isinstance(source, MusicSource)
    assert source.name == "music"
    about = source.about()
    assert (about["kind"], about["vocabulary"]) == ("performances", {"size": 389})
    assert json.loads(json.dumps(about)) == about


def test_the_digest_is_of_names_and_notes(folder, tmp_path):
    one = read_performances(folder)
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    assert read_performances(moved).digest == one.digest
    (moved / "piece-00.mid").rename(moved / "other.mid")
    assert read_performances(moved).digest != one.digest


def test_what_is_measured_on_is_held_out_and_cut_to_a_budget(folder):
    source = read_performances(folder)
    whole = [encode(one) for one in source.split.held_out]
    for found, expected in zip(source.held_out(window=8), whole, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert sum(len(tokens) - 1 for tokens in source.held_out(50, window=8)) == 50
    train = [encode(one) for one in source.split.train]
    assert source.counting(50, window=8) == counting_baselines(train, source.held_out(50, window=8))


def test_validation_performances_are_trained_on_too_where_that_is_asked_for(folder):
    apart, together = (read_performances(folder, train_on_valid=it) for it in (False, True))
    names = [[one.name for one in it.split.train] for it in (apart, together)]
    assert names[1] == names[0] + [one.name for one in apart.split.valid]
    assert apart.digest == together.digest


def test_batches_are_those_of_the_settings(folder):
    data = read_performances(folder).data(PRESETS["tiny"])
    inputs, targets = data.train_dataloader().at(0)
    assert inputs.shape == targets.shape == (8, 128)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_performances_are_refused_in_a_line(tmp_path, count):
    folder = write_performances(tmp_path / "few", count)
    message = rf"few: must hold at least three different performances .*, got {count}$"
    with pytest.raises(ScoreError, match=message):
        read_performances(folder)


def test_copies_alone_are_too_few(tmp_path):
    folder = write_performances(tmp_path / "few", 1)
    for index in range(5):
        shutil.copy(folder / "piece-00.mid", folder / f"copy-{index}.mid")
    with pytest.raises(ScoreError, match="got 1 and 5 copies"):
        read_performances(folder)
