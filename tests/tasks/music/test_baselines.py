"""Counting baselines against counts by hand."""

import math

import numpy as np
import pytest

from relpos_tasks.music import Piece, Vocabulary, counting_baselines, split_pieces, vocabulary_of
from tests.tasks.music.pieces import piece_from

RNG = np.random.default_rng(2)
NAMES = ["previous pitch", "+ beat", "+ voice above"]


def counted_by_hand(train, held_out, vocabulary):
    """The same tables as dictionaries, token by token."""

    def tokens(pieces):
        for piece in pieces:
            grid = vocabulary.encode(piece)[1:].reshape(-1, 4).tolist()
            for step, chord in enumerate(grid):
                for voice, token in enumerate(chord):
                    before = grid[step - 1][voice] if step else "begin"
                    beat = (step + piece.pickup) % piece.steps_per_bar % 4
                    above = chord[voice - 1] if voice else "none"
                    full = (voice, before, beat, above)
                    yield token, [full[:length] for length in (1, 2, 3, 4)]

    counts: dict[tuple, dict[int, int]] = {}
    for token, contexts in tokens(train):
        for context in contexts:
            kinds = counts.setdefault(context, {})
            kinds[token] = kinds.get(token, 0) + 1
    nats, number = [0.0] * 4, 0
    for token, contexts in tokens(held_out):
        number += 1
        p = 1 / vocabulary.size
        for level, context in enumerate(contexts):
            kinds = counts.get(context, {})
            if kinds:
                p = (kinds.get(token, 0) + len(kinds) * p) / (sum(kinds.values()) + len(kinds))
            nats[level] -= math.log(p)
    return dict(zip(NAMES, [total / number for total in nats[1:]], strict=True))


@pytest.mark.parametrize("has_onsets", [True, False])
def test_vectorised_counts_are_those_by_hand(has_onsets):
    train, held_out = (
        [
            piece_from(RNG, steps, has_onsets=has_onsets, pickup=pickup, steps_per_bar=12)
            for steps, pickup in sizes
        ]
        for sizes in ([(33, 0), (65, 5), (1, 3)], [(17, 2), (33, 0)])
    )
    vocabulary = vocabulary_of([*train, *held_out])
    measured = counting_baselines(train, held_out, vocabulary=vocabulary)
    assert list(measured) == NAMES
    assert measured == pytest.approx(counted_by_hand(train, held_out, vocabulary), rel=1e-12)


def test_a_constant_piece_costs_next_to_nothing():
    pitches = np.full((400, 4), 60, np.int16)
    onsets = np.zeros((400, 4), np.bool_)
    onsets[0] = True
    piece = Piece("drone", pitches, onsets)
    measured = counting_baselines([piece], [piece], vocabulary=Vocabulary(60, 71))
    assert max(measured.values()) < 0.05


def test_each_context_helps_on_the_chorales(corpus):
    split = split_pieces(corpus)
    vocabulary = vocabulary_of(split.train)
    nats = list(counting_baselines(split.train, split.held_out, vocabulary=vocabulary).values())
    assert nats == sorted(nats, reverse=True)
    assert nats == pytest.approx([1.065, 0.794, 0.679], abs=5e-3)


def test_no_tokens_are_refused_in_words():
    with pytest.raises(ValueError, match="train and held_out must have tokens, got 0 and 0"):
        counting_baselines([], [], vocabulary=Vocabulary(60, 71))
