"""Copies are found in other keys, tempi and lengths; other music is not a copy."""

import numpy as np
import pytest

from relpos_tasks.music.performances.copies import groups_of_copies
from relpos_tasks.music.performances.performance import performance_of
from tests.tasks.music.performances.played import played

RNG = np.random.default_rng(8)
ONE, OTHER = played(RNG, 200), played(RNG, 200)


def changed(performance, *, up=0, stretch=1.0, kept=slice(None), quieter=1):
    starts, ends = (np.rint(x[kept] * stretch) for x in (performance.starts, performance.ends))
    return performance_of(
        "changed",
        starts - starts.min(),
        ends - starts.min(),
        performance.pitches[kept] + np.uint8(up),
        np.maximum(performance.velocities[kept] // quieter, 1),
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"up": 5},
        {"stretch": 1.5},
        {"quieter": 3},
        {"kept": slice(60, 160)},
        {"kept": slice(0, 30), "up": 2, "stretch": 2.0},
    ],
)
def test_a_changed_copy_is_a_copy(change):
    assert groups_of_copies([ONE, OTHER, changed(ONE, **change)]) == [[0, 2], [1]]


def spread(chords, *, milliseconds):
    """Seconds and pitches of chords of one to four notes that are not quite struck together."""
    rng = np.random.default_rng(3)
    at = np.cumsum(rng.choice([0.12, 0.25, 0.5], chords))
    sizes = rng.integers(1, 5, chords)
    pitches = np.concatenate([rng.choice(np.arange(36, 90), size, False) for size in sizes])
    return np.repeat(at, sizes) + rng.exponential(milliseconds / 1000, sizes.sum()), pitches


def rounded(seconds, pitches):
    steps = np.rint(100 * seconds).astype(np.int64)
    steps -= steps.min()
    return performance_of("rounded", steps, steps + 20, pitches, np.full(len(steps), 64))


@pytest.mark.parametrize("gap", [0.04, 0.08, 0.15])
@pytest.mark.parametrize("stretch", [0.5, 0.95, 1.5])
def test_a_fast_passage_at_another_tempo_is_a_copy(gap, stretch):
    rng = np.random.default_rng(9)
    seconds, pitches = np.cumsum(rng.exponential(gap, 600)), rng.integers(40, 90, 600)
    for times in (gap * np.arange(600), seconds):
        copy = rounded(times * stretch, pitches)
        assert groups_of_copies([rounded(times, pitches), OTHER, copy]) == [[0, 2], [1]]


@pytest.mark.parametrize("milliseconds", [3, 12])
@pytest.mark.parametrize(("later", "stretch"), [(0.003, 1), (0.005, 1), (0, 0.5), (0, 0.9), (0, 2)])
def test_a_copy_that_is_rounded_otherwise_is_a_copy(milliseconds, later, stretch):
    seconds, pitches = spread(200, milliseconds=milliseconds)
    copy = rounded((seconds + later) * stretch, pitches)
    assert groups_of_copies([rounded(seconds, pitches), OTHER, copy]) == [[0, 2], [1]]


def test_copies_of_copies_are_one_group():
    beginning, end = changed(ONE, kept=slice(0, 100)), changed(ONE, kept=slice(100, 200))
    assert groups_of_copies([beginning, end]) == [[0], [1]]
    assert groups_of_copies([beginning, end, ONE]) == [[0, 1, 2]]


def test_many_copies_are_one_group():
    assert groups_of_copies([ONE] * 40 + [OTHER]) == [list(range(40)), [40]]


def test_other_music_is_alone():
    others = [played(RNG, 100) for _ in range(30)]
    assert groups_of_copies(others) == [[index] for index in range(30)]


def test_a_shared_phrase_makes_no_copy():
    phrase = changed(ONE, kept=slice(0, 40))
    last = int(OTHER.starts[-1]) + 10
    both = performance_of(
        "both",
        *(
            np.concatenate([getattr(OTHER, name), getattr(phrase, name) + more])
            for name, more in (("starts", last), ("ends", last), ("pitches", 0), ("velocities", 0))
        ),
    )
    assert groups_of_copies([ONE, OTHER, both]) == [[0], [1, 2]]


@pytest.mark.parametrize("notes", [1, 2, 7])
def test_short_music_is_compared_as_a_whole(notes):
    short, same = (changed(ONE, kept=slice(0, notes), up=up) for up in (0, 1))
    assert groups_of_copies([short, same, ONE]) == [[0, 1], [2]]


def test_nothing_is_no_group():
    assert groups_of_copies([]) == []
