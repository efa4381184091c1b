"""Excerpts: within the budget, alike for all, whole where they are short, and none too short."""

from dataclasses import replace

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
    assert sum(found) <= most
    assert sum(found) > min(most, sum(SIZES)) - len(PLAYED)
    longest = max(found)
    assert all(got in (size, longest) for got, size in zip(found, SIZES, strict=True))
    for tokens, one in zip(excerpts(PLAYED, most=most), PLAYED, strict=True):
        np.testing.assert_array_equal(tokens, encode(one)[: len(tokens)])


def test_a_budget_of_a_few_tokens_is_of_as_many_performances():
    assert [len(tokens) for tokens in excerpts(PLAYED, most=1)] == [2]
    assert [len(tokens) for tokens in excerpts(PLAYED, most=3)] == [2, 2, 2]


def names_of(found):
    return [
        PLAYED.index(one)
        for tokens in found
        for one in PLAYED
        if np.array_equal(tokens, encode(one)[: len(tokens)])
    ]


@pytest.mark.parametrize("least", [1, 20, 40, 64])
@pytest.mark.parametrize("most", [64, 130, 1000])
def test_each_that_is_taken_keeps_so_many_tokens_or_all(most, least):
    found = excerpts(PLAYED, most=most, least=least)
    taken = names_of(found)
    assert taken == sorted(taken)
    assert sum(len(tokens) - 1 for tokens in found) <= most
    for tokens, index in zip(found, taken, strict=True):
        assert len(tokens) - 1 >= min(least, SIZES[index])
    # No more would have had room.
    needed = sorted(min(least, size) for size in SIZES)
    assert len(found) == len(PLAYED) or sum(min(least, SIZES[n]) for n in taken) + needed[-1] > most


def test_which_are_taken_depends_neither_on_names_nor_on_order():
    few = {"most": max(SIZES), "least": max(SIZES)}
    taken = names_of(excerpts(PLAYED, **few))
    assert 0 < len(taken) < len(PLAYED)
    renamed = [replace(one, name=f"{9 - n}") for n, one in enumerate(PLAYED)]
    assert {tokens.tobytes() for tokens in excerpts(renamed[::-1], **few)} == {
        tokens.tobytes() for tokens in excerpts(PLAYED, **few)
    }
