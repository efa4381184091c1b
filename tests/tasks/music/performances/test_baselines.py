"""Counting on event tokens: what it must be where everything is known."""

import numpy as np
import pytest

from relpos_tasks.music.performances.baselines import counting_baselines
from relpos_tasks.music.performances.tokens import NOTE_ON, SIZE, encode
from tests.tasks.music.performances.played import played


def test_what_always_follows_costs_little_and_the_more_so_the_longer_the_context():
    cycle = np.append(0, np.tile(NOTE_ON + np.array([0, 1, 0, 2]), 500))
    nats = counting_baselines([cycle], [cycle])
    assert list(nats) == ["previous token", "+ the one before", "+ the third"]
    # After the first note either of two comes: half of the tokens cost log 2.
    assert nats["previous token"] == pytest.approx(np.log(2) / 2, abs=0.02)
    assert nats["+ the one before"] == pytest.approx(0, abs=0.05)


def test_where_nothing_is_known_it_is_a_uniform_guess():
    nats = counting_baselines([np.array([0, 1])], [np.array([0, 7, 8, 9])])
    # The begin token is a known context, in which a new kind has half.
    first = -np.log(0.5 / SIZE)
    assert nats["previous token"] == pytest.approx((first + 2 * np.log(SIZE)) / 3)


def test_on_music_it_beats_the_uniform_guess():
    rng = np.random.default_rng(0)
    train, held_out = ([encode(played(rng, 200)) for _ in range(n)] for n in (8, 2))
    assert counting_baselines(train, held_out)["previous token"] < 0.9 * np.log(SIZE)


@pytest.mark.parametrize(("train", "held_out"), [([], [[0, 1]]), ([[0, 1]], []), ([[0]], [[0]])])
def test_nothing_to_count_is_refused(train, held_out):
    with pytest.raises(ValueError, match="train and held_out must have tokens, got"):
        counting_baselines(map(np.array, train), map(np.array, held_out))
