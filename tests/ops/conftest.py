"""Fixtures of the op's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ops.interpreter import make_quick


@pytest.fixture(scope="module")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without its repetitions; a GPU's kernels are as they are."""
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        yield
