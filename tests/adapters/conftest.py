"""What some tests of adapters run under: float64 that no model rounds on its way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .unrounded import unrounded


@pytest.fixture
def float64_stays_float64() -> Iterator[None]:
    """Comparisons in float64 would else measure where an original takes its softmax in float32."""
    with unrounded():
        yield
