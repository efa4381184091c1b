"""Performances that are drawn: of the length that was asked for, from the seed, after the prime."""

import numpy as np
import pytest
import torch

from relpos_tasks.models.decoder import DecoderConfig, DecoderLM
from relpos_tasks.music.performances.generate import perform
from relpos_tasks.music.performances.performance import performance_of
from relpos_tasks.music.performances.tokens import SIZE, decode, encode
from tests.tasks.music.performances.played import played

WINDOW = 32


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = DecoderConfig(vocabulary=SIZE, width=16, layers=1, heads=2, max_length=WINDOW)
    return DecoderLM(config)


def notes(performance):
    names = ("starts", "ends", "pitches", "velocities")
    return np.stack([getattr(performance, name).astype(int) for name in names])


@pytest.mark.parametrize("seconds", [0.01, 1.0, 2.5])
def test_it_is_as_long_as_asked_for(model, seconds):
    one = perform(model, window=WINDOW, seconds=seconds, temperature=1.0, top_p=1.0)
    assert one.seconds <= seconds
    assert one.notes


def test_the_seed_decides(model):
    one, same, other = (
        notes(perform(model, window=WINDOW, seconds=2.0, seed=seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert one.shape != other.shape or (one != other).any()


@pytest.mark.parametrize("length", [2, 60])
def test_it_goes_on_from_a_prime(model, length):
    """One that is shorter than half a window, and one that is longer than two."""
    prime = played(np.random.default_rng(1), length)
    one = perform(model, window=WINDOW, seconds=2.0, prime=prime)
    before = one.starts < int(prime.seconds * 100)
    np.testing.assert_array_equal(notes(one)[:, before], notes(decode(encode(prime))))
    assert (~before).any()
    assert prime.seconds < one.seconds <= prime.seconds + 2.0


def test_the_model_sees_no_more_than_a_window(model, monkeypatch):
    seen, forward = [], DecoderLM.forward

    def watched(self, tokens, cache=None):
        before = 0 if cache is None else cache[0].length
        seen.append(before + tokens.shape[1])
        return forward(self, tokens, cache)

    monkeypatch.setattr(DecoderLM, "forward", watched)
    prime = played(np.random.default_rng(2), 50)
    perform(model, window=WINDOW, seconds=5.0, prime=prime)
    assert max(seen) == WINDOW - 1
    assert seen[0] == WINDOW // 2


def test_progress_is_told_in_seconds(model):
    done = []
    perform(model, window=WINDOW, seconds=3.0, progress=done.append)
    assert done[0] == 0
    assert done == sorted(done)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 901.0, float("nan")])
def test_other_lengths_are_refused(model, seconds):
    with pytest.raises(ValueError, match=r"perform: seconds must be in 0\.01\.\.900, got"):
        perform(model, window=WINDOW, seconds=seconds)


def test_silence_can_be_gone_on_from(model):
    found = perform(model, window=WINDOW, prime=performance_of("", [], [], [], []), seconds=1.0)
    assert found.notes
    assert found.seconds <= 1.0


def test_what_is_gone_on_from_is_at_most_an_hour(model):
    long = performance_of("", [0, 361_000], [10, 361_010], [60, 60], [64, 64])
    with pytest.raises(ValueError, match="prime: must be at most 3,600 seconds long, got 3,610"):
        perform(model, window=WINDOW, prime=long, seconds=1.0)
