"""Pieces as tokens and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relpos_tasks.music import BEGIN, REST, Vocabulary, vocabulary_of
from tests.tasks.music.pieces import piece_from, pieces

RNG = np.random.default_rng(0)


@settings(deadline=None)
@given(pieces())
def test_decoding_gives_back_what_was_encoded(piece):
    vocabulary = Vocabulary(40, 80, onsets=piece.has_onsets)
    tokens = vocabulary.encode(piece)
    assert len(tokens) == 1 + 4 * piece.steps
    assert tokens[0] == BEGIN
    decoded = vocabulary.decode(
        tokens,
        name=piece.name,
        pickup=piece.pickup,
        steps_per_bar=piece.steps_per_bar,
        fifths=piece.fifths,
    )
    assert np.array_equal(decoded.pitches, piece.pitches)
    assert np.array_equal(decoded.onsets, piece.onsets)
    assert (decoded.name, decoded.pickup, decoded.steps_per_bar, decoded.fifths) == (
        piece.name,
        piece.pickup,
        piece.steps_per_bar,
        piece.fifths,
    )


@settings(deadline=None)
@given(st.booleans(), st.lists(st.integers(0, 7), max_size=40))
def test_every_sequence_of_tokens_is_a_piece(onsets, tokens):
    vocabulary = Vocabulary(60, 62, onsets=onsets)
    tokens = np.array(tokens, np.int64) % vocabulary.size
    piece = vocabulary.decode(tokens)
    begun = len(tokens) > 0 and tokens[0] == BEGIN
    assert piece.steps == (len(tokens) - begun) // 4
    # Once written in the normal form, it stays.
    again = vocabulary.encode(piece)
    assert np.array_equal(vocabulary.encode(vocabulary.decode(again)), again)


def test_voices_are_interleaved_step_by_step():
    vocabulary = Vocabulary(40, 80)
    piece = piece_from(RNG, 9)
    grid = vocabulary.encode(piece)[1:].reshape(9, 4)
    assert np.array_equal(grid == REST, piece.pitches == -1)
    struck = (grid > REST) & (grid < 2 + vocabulary.pitches)
    assert np.array_equal(struck, piece.onsets)


def test_without_onsets_struck_and_held_are_one_token():
    vocabulary = Vocabulary(40, 80, onsets=False)
    assert vocabulary.size == 2 + 41
    piece = piece_from(RNG, 9)
    assert np.array_equal(vocabulary.decode(vocabulary.encode(piece)).pitches, piece.pitches)


def test_the_vocabulary_covers_the_pieces_and_a_transposition():
    piece = piece_from(RNG, 65)
    sounding = piece.pitches[piece.pitches >= 0]
    vocabulary = vocabulary_of([piece], transposition=5)
    assert (vocabulary.lowest, vocabulary.highest) == (sounding.min() - 5, sounding.max() + 5)
    assert vocabulary.onsets
    assert not vocabulary_of([piece, piece_from(RNG, 3, has_onsets=False)]).onsets


@pytest.mark.parametrize("onsets", [True, False])
def test_struck_and_held_are_the_tokens_of_a_piece(onsets):
    vocabulary = Vocabulary(40, 80, onsets=onsets)
    piece = piece_from(RNG, 33, has_onsets=onsets)
    grid = vocabulary.encode(piece)[1:].reshape(33, 4)
    for step, voice in np.ndindex(grid.shape):
        pitch = int(piece.pitches[step, voice])
        struck = REST if pitch == -1 else vocabulary.struck(pitch)
        goes_on = not piece.onsets[step, voice]
        assert grid[step, voice] == (vocabulary.held(struck) if goes_on else struck)
        assert vocabulary.held(vocabulary.held(struck)) == vocabulary.held(struck)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lowest": "40"}, "lowest must be an integer >= 0, got '40'"),
        ({"highest": 80.0}, "highest must be an integer >= 0, got 80.0"),
        ({"onsets": 1}, "onsets must be True or False, got 1"),
    ],
)
def test_a_vocabulary_is_made_of_whole_pitches(fields, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(**{"lowest": 40, "highest": 80} | fields)


def test_what_does_not_fit_is_refused_in_words():
    piece = piece_from(RNG, 33, name="bwv1")
    with pytest.raises(ValueError, match=r"pitches must be in 60\.\.61, got \d+ in step 0 of the"):
        Vocabulary(60, 61).encode(piece)
    with pytest.raises(ValueError, match="piece must have onsets, got 'bwv1' without"):
        Vocabulary(40, 80).encode(piece_from(RNG, 3, name="bwv1", has_onsets=False))
    with pytest.raises(ValueError, match=r"tokens must be in 0\.\.5, got 0\.\.6"):
        Vocabulary(60, 61).decode(np.array([0, 6]))
    with pytest.raises(ValueError, match="lowest and highest must be MIDI pitches"):
        Vocabulary(61, 60)
    with pytest.raises(ValueError, match="pieces must hold a note, got 0"):
        vocabulary_of([])
