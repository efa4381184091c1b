"""The backends under test, each with the dtype in which it is judged."""

from __future__ import annotations

import os

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
# In its interpreter triton is too slow for the whole suite: what runs there is in test_triton.py.
ON_GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
_SUITE = [name for name in DTYPES if name != "triton" or ON_GPU]


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
            if name in _SUITE
        ],
    )


# Where an operator of its own, unlike the op, wants its tensors.
DEVICES = dict.fromkeys(DTYPES, "cpu") | {"triton": "cuda" if ON_GPU else "cpu"}
# Keys at most where the values are an identity matrix, since triton's heads are so wide at most.
MOST_KEYS = dict.fromkeys(DTYPES, 1 << 30) | {"triton": 256}

every_backend = _named(*_SUITE)
# Those of O(L) memory, which torch sees as one operation.
every_blockwise = _named("tiled", "native", "triton")
# Those that "auto" may take, which compute half precision in float32.
every_cpu_blockwise = _named("tiled", "native")
native_alone = _named("native")
