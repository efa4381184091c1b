"""Fixtures of the op's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.ops.interpreter import make_quick


@pytest.fixture(scope="module")
def quick_interpreter() -> Iterator[None]:
    """Triton's interpreter without its repetitions; a GPU's kernels are as they are."""
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        yield


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of the triton backend are recorded anew: what a test replaces is not in their keys."""
    recorded = sys.modules.get("relpos.ops.triton.recorded")
    if recorded is not None:
        monkeypatch.setattr(recorded, "_passes", recorded.RecordedPasses())
