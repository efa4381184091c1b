"""Pools of 1, 2, 3 and 4 processes, one of each for a whole run."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import set_forkserver_preload
from pathlib import Path

import pytest

from benchmarks.measure.ranks import Pool

# What takes seconds is imported once, by the process that the others are forked from.
set_forkserver_preload([
    "tests.distributed.cut", "relpos.layers", "relpos.adapters",
    "transformers.models.t5.modeling_t5", "transformers.models.parakeet.modeling_parakeet",
])  # fmt: skip

HERE = Path(__file__).parent
POOLS = {"one", "two", "three", "four"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ranks do as what nobody types: they are processes of their own."""
    for item in items:
        if HERE in item.path.parents and POOLS & set(getattr(item, "fixturenames", ())):
            item.add_marker("no_typecheck")


@pytest.fixture(scope="session")
def one() -> Iterator[Pool]:
    """One rank."""
    pool = Pool(1, start="forkserver")
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def two() -> Iterator[Pool]:
    """Two ranks."""
    pool = Pool(2, start="forkserver")
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def three() -> Iterator[Pool]:
    """Three ranks."""
    pool = Pool(3, start="forkserver")
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Pool]:
    """Four ranks."""
    pool = Pool(4, start="forkserver")
    yield pool
    pool.close()
