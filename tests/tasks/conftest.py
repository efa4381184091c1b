"""A small source of pieces, and one finished comparison for all tests of the tasks."""

import numpy as np
import pytest
import torch

from relpos_tasks.music.chorale_composer import ChoraleComposer
from relpos_tasks.music.compare import compare
from relpos_tasks.music.source import Source
from tests.tasks.small import COMPARISON, CPU, small, source_from


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Models of a few numbers gain nothing from threads, and sums in two parts are other sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def source() -> Source:
    return source_from(np.random.default_rng(5))


@pytest.fixture(scope="session")
def compared(source, tmp_path_factory):
    """The folder of a comparison, and its results."""
    folder = tmp_path_factory.mktemp("compared")
    results = compare(
        small(steps=4),
        COMPARISON,
        source,
        ChoraleComposer(bars=2),
        folder=folder,
        devices=CPU,
        say=lambda line: None,
    )
    assert results is not None
    return folder, results
