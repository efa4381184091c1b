"""Settings of the whole suite."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Before relpos or triton is imported: without a GPU the kernels run in Triton's interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under the jaxtyping hook, leave out what tests our own errors or `torch.compile`."""
    if not config.getoption("--jaxtyping-packages", default=None):
        return
    skipped = [item for item in items if item.get_closest_marker("no_typecheck")]
    config.hook.pytest_deselected(items=skipped)
    items[:] = [item for item in items if item not in skipped]


@pytest.fixture(autouse=True)
def _same_draws_each_time() -> None:
    torch.manual_seed(0)
