"""Performances: one note of a pitch at a time, in order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from relpos_tasks.music.performances.performance import performance_of
from tests.tasks.music.performances.played import performances, played

PLAYED = played(np.random.default_rng(0), 33)


def columns(performance):
    names = ("starts", "ends", "pitches", "velocities")
    return np.stack([getattr(performance, name).astype(int) for name in names])


@given(performances())
def test_a_performance_of_its_own_notes_is_the_same(performance):
    again = performance_of("again", *columns(performance))
    np.testing.assert_array_equal(columns(again), columns(performance))


def test_the_order_of_the_notes_does_not_matter():
    shuffled = columns(PLAYED)[:, np.random.default_rng(1).permutation(PLAYED.notes)]
    np.testing.assert_array_equal(columns(performance_of("", *shuffled)), columns(PLAYED))


def test_a_note_ends_where_the_next_of_its_pitch_begins():
    one = performance_of("", [0, 30, 10], [100, 40, 50], [60, 60, 64], [10, 20, 30])
    assert columns(one).tolist() == [[0, 10, 30], [30, 50, 40], [60, 64, 60], [10, 30, 20]]


def test_of_two_notes_that_begin_together_the_longer_stays():
    one = performance_of("", [5, 5], [9, 12], [60, 60], [90, 80])
    assert columns(one).tolist() == [[5], [12], [60], [80]]


def test_every_note_lasts_a_step():
    assert performance_of("", [5], [5], [60], [90]).ends.tolist() == [6]


def test_no_note_is_a_performance_of_no_length():
    assert performance_of("", [], [], [], []).seconds == 0


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        (([-1], [5], [60], [1]), "starts must be at least 0, got -1"),
        (([0], [5], [128], [1]), r"pitches must be in 0\.\.127, got 128"),
        (([0], [5], [60], [128]), r"velocities must be in 1\.\.127, got 128"),
        (([0], [5], [60], [0]), r"velocities must be in 1\.\.127, got 0"),
    ],
)
def test_notes_out_of_range_are_refused(notes, message):
    with pytest.raises(ValueError, match=f"performance_of: {message}"):
        performance_of("", *notes)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("starts", lambda x: x[:-1], r"ends must be \(32,\) int32, got \(33,\) int32"),
        ("pitches", lambda x: x.astype(np.int64), r"pitches must be \(33,\) uint8"),
        ("starts", lambda x: x - 1, "starts must not be negative, not so at note 0"),
        ("ends", lambda x: x * 0, "ends must be after the starts"),
        ("pitches", lambda x: x + np.uint8(100), r"pitches must be in 0\.\.127"),
        ("velocities", lambda x: x * 0, r"velocities must be in 1\.\.127"),
        ("starts", lambda x: np.append(x[1:], x[:1]), ""),
        ("pitches", lambda x: x * 0 + 60, ""),
        ("ends", lambda x: x * 0 + x.max(), "must end before the next one of its pitch"),
    ],
)
def test_what_is_no_performance_is_refused(column, change, message):
    with pytest.raises(ValueError, match=f"Performance: .*{message}"):
        replace(PLAYED, **{column: change(getattr(PLAYED, column))})
