"""Fixtures of the op's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ops.interpreter import patch_the_language_once


@pytest.fixture(scope="session")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without its repetitions; a GPU's kernels are as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch_the_language_once(patch)
        yield
