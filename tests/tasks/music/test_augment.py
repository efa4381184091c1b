"""Transposition within the voices' ranges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relpos_tasks.music import semitones_within, transpose, voice_ranges
from tests.tasks.music.pieces import piece_from, pieces

RNG = np.random.default_rng(1)


@settings(deadline=None)
@given(pieces(), st.integers(-6, 6))
def test_transposing_back_gives_the_piece(piece, semitones):
    moved = transpose(piece, semitones)
    again = transpose(moved, -semitones)
    assert np.array_equal(again.pitches, piece.pitches)
    assert np.array_equal(again.onsets, piece.onsets)
    sounds = piece.pitches >= 0
    assert (moved.pitches[sounds] - piece.pitches[sounds] == semitones).all()
    assert (moved.pitches[~sounds] == -1).all()
    # Six sharps and six flats are the same keys.
    assert (again.fifths - piece.fifths) % 12 == 0


def test_key_signatures_move_along():
    piece = piece_from(RNG, 3, fifths=0)
    signatures = [transpose(piece, semitones).fifths for semitones in range(-6, 7)]
    assert signatures == [6, 1, -4, 3, -2, 5, 0, -5, 2, -3, 4, -1, 6]


def test_every_voice_stays_in_its_range():
    train = [piece_from(RNG, 65) for _ in range(3)]
    ranges = voice_ranges(train)
    for piece in train:
        allowed = semitones_within(piece, ranges)
        assert 0 in allowed
        for semitones in range(-6, 7):
            lines = transpose(piece, semitones).pitches.T
            inside = all(
                lowest <= line[line >= 0].min() and line.max() <= highest
                for line, (lowest, highest) in zip(lines, ranges, strict=True)
            )
            assert inside == (semitones in allowed)


def test_the_limit_bounds_both_directions():
    wide = np.array([[0, 127]] * 4, np.int16)
    assert semitones_within(piece_from(RNG, 9), wide, limit=2) == [-2, -1, 0, 1, 2]


def test_a_piece_beyond_the_ranges_stays_as_it_is():
    narrow = np.array([[70, 70]] * 4, np.int16)
    assert semitones_within(piece_from(RNG, 33), narrow) == [0]


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(
        ValueError, match=r"pitches must stay in 0\.\.127, got .* after 70 semitones"
    ):
        transpose(piece_from(RNG, 9), 70)
    with pytest.raises(ValueError, match="every voice must have a note, got none in the soprano"):
        voice_ranges([])
