"""Event tokens: what the papers list, there and back, stretched, and beside MidiTok's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from miditok import MIDILike, TokenizerConfig
from symusic import Score

from relpos_tasks.music.performances.midi import midi_of
from relpos_tasks.music.performances.performance import performance_of
from relpos_tasks.music.performances.tokens import (
    LONGEST_SHIFT,
    NOTE_OFF,
    NOTE_ON,
    SHIFT,
    SIZE,
    VELOCITY,
    decode,
    encode,
    events_of,
    seconds_of,
    steps_after,
    token_name,
    transposed,
)
from relpos_tasks.music.tokens import BEGIN
from tests.tasks.music.performances.played import performances, played


def names(tokens):
    return [token_name(token) for token in tokens.tolist()]


def test_the_vocabulary_is_that_of_the_papers_and_a_token_to_begin():
    assert SIZE == 1 + 128 + 128 + 100 + 32
    assert len(set(names(np.arange(SIZE)))) == SIZE


@given(performances())
def test_notes_come_back_from_their_tokens(performance):
    again = decode(encode(performance))
    for column in ("starts", "ends", "pitches"):
        np.testing.assert_array_equal(getattr(again, column), getattr(performance, column))
    heard = again.velocities.astype(int) - performance.velocities
    assert np.abs(heard).max() < 4


@given(performances())
def test_tokens_come_back_from_their_notes(performance):
    tokens = encode(performance)
    np.testing.assert_array_equal(encode(decode(tokens)), tokens)


def test_a_chord_is_ended_before_the_next_from_the_lowest_note_to_the_highest():
    chords = performance_of("", [0, 0, 50, 50], [50, 50, 90, 90], [67, 60, 69, 60], [8, 8, 8, 1])
    assert names(encode(chords)) == [
        "begin", "velocity 5-8", "C4 on", "G4 on", "500 ms", "C4 off", "G4 off",
        "velocity 1-4", "C4 on", "velocity 5-8", "A4 on", "400 ms", "C4 off", "A4 off",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "shifts"),
    [(1, [1]), (99, [99]), (100, [100]), (101, [100, 1]), (200, [100, 100]), (234, [100, 100, 34])],
)
def test_a_silence_is_written_by_its_longest_shifts_first(steps, shifts):
    tokens = encode(performance_of("", [0], [steps], [60], [64]))
    assert (tokens[3:-1] - SHIFT + 1).tolist() == shifts
    assert seconds_of(tokens) == steps / 100
    assert events_of(performance_of("", [0], [steps], [60], [64])).lengths.sum() == len(tokens) - 1


@given(performances(), st.sampled_from([0.95, 0.975, 1.0, 1.025, 1.05]))
def test_a_stretched_performance_has_the_same_events_at_nearest_steps(performance, stretch):
    events = events_of(performance)
    tokens = events.with_shifts(stretch=stretch)
    kept = (tokens < SHIFT) | (tokens >= VELOCITY)
    np.testing.assert_array_equal(tokens[kept], events.tokens)
    times = steps_after(tokens)[kept]
    np.testing.assert_array_equal(times, np.rint(events.times * stretch))


@given(performances(), st.integers(0, 40), st.integers(1, 60))
def test_a_part_of_the_events_has_the_same_tokens_in_the_middle(performance, first, count):
    events = events_of(performance)
    first = min(first, len(events.tokens) - 1)
    ends = np.cumsum(events.lengths)
    found = events.part(first, first + count).with_shifts()
    whole = events.with_shifts()
    np.testing.assert_array_equal(found, whole[ends[first] - 1 :][: len(found)])


def test_transposed_tokens_are_those_of_the_transposed_notes():
    one = played(np.random.default_rng(3), 40)
    up = performance_of("", one.starts, one.ends, one.pitches + np.uint8(3), one.velocities)
    np.testing.assert_array_equal(transposed(encode(one), 3), encode(up))


@given(st.lists(st.integers(0, SIZE - 1), max_size=60))
def test_any_tokens_are_notes_of_some_kind(tokens):
    performance = decode(np.array(tokens, np.int64))
    struck = [token for token in tokens if NOTE_ON <= token < NOTE_OFF]
    assert performance.notes <= len(struck)
    assert set(performance.pitches.tolist()) == {token - NOTE_ON for token in struck}


def test_what_makes_no_sense_is_passed_over():
    on, off, second = NOTE_ON + 60, NOTE_OFF + 60, SHIFT + LONGEST_SHIFT - 1
    # An end of silence, a note struck while it sounds, and one that is never ended.
    one = decode(np.array([off, second, BEGIN, on, second, on, VELOCITY, second, off, on, second]))
    assert one.starts.tolist() == [100, 200, 300]
    assert one.ends.tolist() == [200, 300, 400]
    assert one.velocities.tolist() == [64, 64, 2]


@pytest.mark.parametrize("token", [-1, SIZE])
def test_tokens_out_of_range_are_refused(token):
    with pytest.raises(ValueError, match=r"decode: tokens must be in 0\.\.388, got"):
        decode(np.array([0, token]))


def test_events_are_those_of_miditok():
    """MidiTok counts in beats, here of a second, and writes each note's velocity behind it."""
    tokenizer = MIDILike(
        TokenizerConfig(
            pitch_range=(0, 127), beat_res={(0, 1): 100}, num_velocities=32, special_tokens=[]
        )
    )
    one = played(np.random.default_rng(5), 200)
    (theirs,) = tokenizer(Score.from_midi(midi_of(one)))
    kinds = {"NoteOn": "on", "NoteOff": "off"}
    read, now = [], 0
    for kind, value in (token.split("_") for token in theirs.tokens):
        if kind == "TimeShift":
            beats, parts, resolution = map(int, value.split("."))
            now += beats * 100 + parts * 100 // resolution
        elif kind in kinds:
            read.append((now, kinds[kind], int(value)))
    tokens = encode(one)
    ours = [
        (now, "on" if token < NOTE_OFF else "off", (token - NOTE_ON) % 128)
        for now, token in zip(steps_after(tokens).tolist(), tokens.tolist(), strict=True)
        if NOTE_ON <= token < SHIFT
    ]
    assert sorted(ours) == sorted(read)
