"""Composed chorales: on the grid, around a melody, decided by the seed."""

import numpy as np
import pytest

from relpos_tasks.music.generate import VoiceConstraint, _fifths, compose
from relpos_tasks.music.melody import Melody
from relpos_tasks.music.piece import SILENCE, Piece
from relpos_tasks.music.tokens import BEGIN, REST
from relpos_tasks.music.train import build
from tests.tasks.music.pieces import piece_from
from tests.tasks.small import SMALL, source_from


@pytest.fixture(scope="module")
def model(source):
    return build("huang", SMALL, source.vocabulary)


def tune(steps=27, **fields):
    piece = piece_from(np.random.default_rng(4), steps)
    return Melody(
        piece.pitches[:, 0],
        piece.onsets[:, 0],
        **{"pickup": 4, "steps_per_bar": 12, "fifths": -2} | fields,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_a_chorale_obeys_the_grid(model, source, temperature):
    piece = compose(
        model, source.vocabulary, source.ranges, bars=2, temperature=temperature, top_p=1.0, seed=1
    )
    assert piece.steps == 32
    sounding = piece.pitches != SILENCE
    for voice, (lowest, highest) in enumerate(source.ranges):
        pitches = piece.pitches[sounding[:, voice], voice]
        assert ((pitches >= lowest) & (pitches <= highest)).all()
    held = sounding & ~piece.onsets
    np.testing.assert_array_equal(piece.pitches[1:][held[1:]], piece.pitches[:-1][held[1:]])
    assert not held[0].any()
    # An upbeat, and three quarters for the last chord.
    assert (piece.pickup, piece.steps_per_bar) == (12, 16)
    assert not piece.onsets[-11:].any()


def test_the_tokens_themselves_are_on_the_grid(model, source, monkeypatch):
    drawn = []
    decode = source.vocabulary.decode
    monkeypatch.setattr(
        type(source.vocabulary),
        "decode",
        lambda self, tokens, **fields: drawn.append(tokens) or decode(tokens, **fields),
    )
    piece = compose(model, source.vocabulary, source.ranges, bars=1, temperature=3.0, seed=2)
    (tokens,) = drawn
    assert tokens[0] == BEGIN
    assert (tokens[1:] != BEGIN).all()
    # Nothing had to be mended: what was drawn is what the piece says.
    np.testing.assert_array_equal(tokens, source.vocabulary.encode(piece))


@pytest.mark.parametrize("has_onsets", [True, False])
def test_the_melody_is_kept_note_for_note(has_onsets):
    source = source_from(np.random.default_rng(5), has_onsets=has_onsets)
    model = build("huang", SMALL, source.vocabulary)
    melody = tune()
    piece = compose(model, source.vocabulary, source.ranges, melody=melody, seed=3)
    np.testing.assert_array_equal(piece.pitches[:, 0], melody.pitches)
    if has_onsets:
        np.testing.assert_array_equal(piece.onsets[:, 0], melody.onsets)
    assert (piece.pickup, piece.steps_per_bar, piece.fifths) == (4, 12, -2)


def test_the_other_voices_end_with_the_melody(model, source):
    melody = tune()
    last = melody.onsets.nonzero()[0][-1]
    piece = compose(model, source.vocabulary, source.ranges, melody=melody, temperature=3.0)
    assert not piece.onsets[last + 1 :].any()


def test_the_sixteenths_that_are_done_are_told(model, source):
    told = []
    compose(model, source.vocabulary, source.ranges, bars=1, progress=told.append)
    assert told == [step for step in range(16) for _ in range(4)]


def test_the_seed_decides_the_chorale(model, source):
    one, two, other = (
        compose(model, source.vocabulary, source.ranges, bars=1, temperature=2.0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one.pitches, two.pitches)
    assert not np.array_equal(one.pitches, other.pitches)


def test_a_held_token_follows_its_own_pitch_alone(source):
    vocabulary = source.vocabulary
    constraint = VoiceConstraint(vocabulary, source.ranges, steps=4, last=3)
    first_held = 2 + vocabulary.pitches
    struck = 2 + int(source.ranges[0, 0]) - vocabulary.lowest
    begun = [BEGIN, struck, REST, REST, REST]
    for tokens in (begun, [*begun, struck + vocabulary.pitches, REST, REST, REST]):
        allowed = constraint.allowed(np.array(tokens)).nonzero()[0]
        assert [token for token in allowed if token >= first_held] == [struck + vocabulary.pitches]
        assert BEGIN not in allowed
    assert not (constraint.allowed(np.array([*begun, REST])).nonzero()[0] >= first_held).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bars": 0}, r"bars must be in 1\.\.256, got 0"),
        ({"bars": 10_000_000}, r"bars must be in 1\.\.256, got 10000000"),
        ({"melody": tune(4097)}, "melody must be at most 4096 sixteenths long, got 4097"),
        ({"temperature": -1.0}, "temperature must be a number >= 0, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be a number >= 0, got nan"),
        ({"top_p": 0.0}, "top_p must be in 0 < top_p <= 1, got 0.0"),
        ({"seed": -1}, r"seed must be in 0\.\.4294967295, got -1"),
        ({"seed": 2**64}, r"seed must be in 0\.\.4294967295, got 18446744073709551616"),
    ],
)
def test_numbers_out_of_range_are_refused(model, source, options, message):
    with pytest.raises(ValueError, match=message):
        compose(model, source.vocabulary, source.ranges, **options)


def test_the_key_signature_is_that_of_the_notes():
    for fifths, tonic in ((0, 60), (2, 62)):
        pitches = [tonic + step for step in (0, 2, 4, 5, 7, 9, 11)]
        chord = np.array([pitches[:4], [*pitches[4:], -1]], np.int16)
        assert _fifths(Piece("", chord, np.zeros((2, 4), bool), has_onsets=False)) == fifths
