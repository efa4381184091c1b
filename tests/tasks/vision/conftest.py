"""The digits, read once, and one finished comparison on canvases of them."""

import pytest

from relpos_tasks.vision.compare import compare
from relpos_tasks.vision.digits import DigitSplit, read_digits
from tests.tasks.small import CPU
from tests.tasks.vision.small import COMPARISON, small


@pytest.fixture(scope="session")
def digits() -> DigitSplit:
    return read_digits()


@pytest.fixture(scope="session")
def compared(digits, tmp_path_factory):
    """The folder of a comparison, and its results."""
    folder = tmp_path_factory.mktemp("compared")
    results = compare(
        small(), COMPARISON, digits, folder=folder, devices=CPU, say=lambda line: None
    )
    assert results is not None
    return folder, results
