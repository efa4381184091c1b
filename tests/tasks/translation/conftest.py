"""A small text, small chorales, and one finished comparison of each for all tests here."""

import numpy as np
import pytest

from relpos_tasks.translation import read_source
from relpos_tasks.translation.chorales import ChoraleSource
from relpos_tasks.translation.compare import compare
from relpos_tasks.translation.harmony_showcase import HarmonyShowcase
from relpos_tasks.translation.text_showcase import TextShowcase
from tests.tasks.small import CPU, source_from
from tests.tasks.translation.sentences import pairs, write_folder
from tests.tasks.translation.small import COMPARISON, small, small_chorales


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """A folder of parallel text."""
    text = pairs(120)
    folder = tmp_path_factory.mktemp("data") / "captions"
    return write_folder(folder, {"train": text[:100], "val": text[100:]})


@pytest.fixture(scope="session")
def text(text_folder):
    return read_source(text_folder, vocabulary=300)


@pytest.fixture(scope="session")
def chorales():
    return ChoraleSource(source_from(np.random.default_rng(5)))


@pytest.fixture(scope="session")
def compared_text(text, tmp_path_factory):
    """The folder of a comparison of translators, and its results."""
    folder = tmp_path_factory.mktemp("text")
    results = compare(
        small(), COMPARISON, text, TextShowcase(), folder=folder, devices=CPU, say=lambda _: None
    )
    assert results is not None
    return folder, results


@pytest.fixture(scope="session")
def compared_chorales(chorales, tmp_path_factory):
    """The folder of a comparison of harmonisers, and its results."""
    folder = tmp_path_factory.mktemp("harmony")
    results = compare(
        small_chorales(),
        COMPARISON,
        chorales,
        HarmonyShowcase(),
        folder=folder,
        devices=CPU,
        say=lambda _: None,
    )
    assert results is not None
    return folder, results
