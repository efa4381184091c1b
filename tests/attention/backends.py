"""The backends under test, each with the dtype in which it is judged."""

from __future__ import annotations

import pytest
import torch

from relpos import backends

# The widest that each computes in.
DTYPES = {
    "reference": torch.float64,
    "tiled": torch.float64,
    "native": torch.float32,
    "triton": torch.float32,
}


def _named(*names: str) -> pytest.MarkDecorator:
    """A test for each backend; one that this machine lacks is skipped with its own reason."""
    reasons = backends()
    return pytest.mark.parametrize(
        "backend",
        [
            pytest.param(
                name, marks=pytest.mark.skipif(bool(reasons[name]), reason=str(reasons[name]))
            )
            for name in names
        ],
    )


every_backend = _named(*DTYPES)
# Those of O(L) memory, which torch sees as one operation.
every_blockwise = _named("tiled", "native", "triton")
native_alone = _named("native")
