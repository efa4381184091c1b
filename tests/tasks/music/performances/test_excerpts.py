"""Excerpts: within the budget, alike for all, whole where they are short."""

import numpy as np
import pytest

from relpos_tasks.music.performances.excerpts import excerpts
from relpos_tasks.music.performances.tokens import encode
from tests.tasks.music.performances.played import played

RNG = np.random.default_rng(9)
PLAYED = [played(RNG, notes) for notes in (3, 50, 9, 80)]
SIZES = [len(encode(one)) - 1 for one in PLAYED]


def test_without_a_budget_all_is_there():
    for tokens, one in zip(excerpts(PLAYED), PLAYED, strict=True):
        np.testing.assert_array_equal(tokens, encode(one))


@pytest.mark.parametrize("most", [4, 17, 40, 100, 301, 10_000])
def test_a_budget_is_used_up_and_not_passed(most):
    found = [len(tokens) - 1 for tokens in excerpts(PLAYED, most=most)]
    assert sum(found) <= max(most, len(PLAYED))
    assert sum(found) > min(most, sum(SIZES)) - len(PLAYED)
    longest = max(found)
    assert all(got in (size, longest) for got, size in zip(found, SIZES, strict=True))
    for tokens, one in zip(excerpts(PLAYED, most=most), PLAYED, strict=True):
        np.testing.assert_array_equal(tokens, encode(one)[: len(tokens)])


def test_every_performance_keeps_a_token():
    assert [len(tokens) for tokens in excerpts(PLAYED, most=1)] == [2, 2, 2, 2]
