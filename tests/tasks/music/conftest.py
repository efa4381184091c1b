"""The chorales, read once."""

import pytest

from relpos_tasks.music import Piece, chorales


@pytest.fixture(scope="session")
def corpus() -> list[Piece]:
    """The chorales, read from the scores: a cache of another version must not decide a test."""
    return chorales(cache=False)


@pytest.fixture(scope="session")
def by_name(corpus) -> dict[str, Piece]:
    return {piece.name: piece for piece in corpus}
