"""A piece in sixteenths: bars, onsets, contradictions."""

import re

import numpy as np
import pytest

from relpos_tasks.music import Piece
from relpos_tasks.music.piece import strikes_of

CHORD = np.array([[72, 67, 64, 48]] * 3, np.int16)
STRUCK = np.array([[True] * 4, [False] * 4, [False] * 4])


def test_steps_are_counted_from_the_pickup():
    piece = Piece("p", CHORD, STRUCK, pickup=11, steps_per_bar=12)
    assert piece.bar_steps.tolist() == [11, 0, 1]


def test_unknown_onsets_are_struck_where_the_pitch_changes():
    pitches = np.array([[72, 67, 64, -1], [72, 65, 64, 48], [-1, 65, 64, 48]], np.int16)
    piece = Piece("p", pitches, np.zeros((3, 4), np.bool_), has_onsets=False)
    assert piece.strikes.tolist() == strikes_of(pitches).tolist()
    assert piece.strikes.sum(axis=1).tolist() == [3, 2, 0]


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pitches": CHORD[:, :3]}, "pitches must be (steps, 4) int16, got (3, 3) int16"),
        ({"pitches": CHORD.astype(np.int64)}, "pitches must be (steps, 4) int16, got (3, 4) int64"),
        ({"onsets": STRUCK.astype(np.int16)}, "onsets must be (steps, 4) bool"),
        ({"onsets": STRUCK[:2]}, "onsets must have as many steps as pitches, got 2 and 3"),
        ({"pitches": CHORD + np.int16(90)}, "pitches must be MIDI pitches 0..127 or -1, got 138"),
        ({"steps_per_bar": 0}, "steps_per_bar must be positive, got 0"),
        ({"pickup": 16}, "pickup must be in 0..15, got 16"),
        ({"has_onsets": False}, "onsets must be False everywhere where has_onsets is False"),
        (
            {"onsets": np.zeros((3, 4), np.bool_)},
            "must be True where a voice begins another pitch, got False in step 0 of the soprano",
        ),
        (
            {"pitches": np.where([[1, 0, 1, 1]], CHORD, -1).astype(np.int16)},
            "must be False where a voice is silent, got True in step 0 of the alto",
        ),
    ],
)
def test_contradictions_are_refused_in_words(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Piece(**{"name": "p", "pitches": CHORD, "onsets": STRUCK} | change)
