"""Performances and MIDI files for tests: one seeded factory, one hypothesis strategy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from symusic import ControlChange, Note, Score, Tempo, Track

from relpos_tasks.music.performances.midi import midi_of
from relpos_tasks.music.performances.performance import Performance, performance_of


def played(rng: np.random.Generator, notes: int, *, name: str = "played") -> Performance:
    """Random notes, many at once, in about a tenth of a second each, with some long silences."""
    gaps = rng.choice([0, 1, 7, 12, 30, 250], size=notes, p=[0.3, 0.1, 0.2, 0.2, 0.18, 0.02])
    gaps[:1] = 0
    starts = np.cumsum(gaps)
    return performance_of(
        name,
        starts,
        starts + rng.integers(1, 130, notes),
        rng.integers(40, 90, notes),
        rng.integers(1, 128, notes),
    )


@st.composite
def performances(draw: st.DrawFn) -> Performance:
    """From one note to some dozens, of the whole keyboard and beyond."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    notes = draw(st.sampled_from([1, 2, 15, 33, 65]))
    starts = np.cumsum(rng.integers(0, draw(st.sampled_from([2, 30, 300])), notes))
    return performance_of(
        "drawn",
        starts - starts[0],
        starts - starts[0] + rng.integers(0, 200, notes),
        rng.integers(0, 128, notes),
        rng.integers(1, 128, notes),
    )


def write_performances(folder: Path, count: int, *, notes: int = 120, seed: int = 0) -> Path:
    """A folder with so many MIDI files, all different."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        (folder / f"piece-{index:02}.mid").write_bytes(midi_of(played(rng, notes)))
    return folder


def midi_file(
    notes: list[tuple[int, int, int, int]],
    *,
    pedals: list[tuple[int, int]] = (),  # type: ignore[assignment]
    drums: bool = False,
    qpm: float = 120.0,
) -> bytes:
    """A MIDI file of 480 ticks to the quarter.

    Args:
        notes: start, duration (ticks), pitch, velocity.
        pedals: ticks and values of the sustain pedal.
        drums: whether they are the drums'.
        qpm: quarters per minute.
    """
    score, track = Score(480), Track(is_drum=drums)
    score.tempos.append(Tempo(0, qpm=qpm))
    for note in notes:
        track.notes.append(Note(*note))
    for time, value in pedals:
        track.controls.append(ControlChange(time, 64, value))
    score.tracks.append(track)
    return score.dumps_midi()
