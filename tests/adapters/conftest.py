"""A mark for models of other libraries, and float64 that no model rounds on its way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .models.case import Case
from .unrounded import unrounded


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what no other version of transformers changes."""
    for item in items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")
        if isinstance(case, Case) and not case.pretrained:
            item.add_marker("other_library")


@pytest.fixture
def float64_stays_float64() -> Iterator[None]:
    """Comparisons in float64 would else measure where an original takes its softmax in float32."""
    with unrounded():
        yield
