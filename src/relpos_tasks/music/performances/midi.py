"""Performances from MIDI files and back (both through symusic; pedals in `pedals.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from numpy import ndarray
from symusic import Note, Score, Tempo, Track

from ...files import read_whole
from ..score_lines import ScoreError
from .pedals import pedals_in, sustained, tracks_of_pedals
from .performance import STEPS_PER_SECOND, Performance, performance_of

__all__ = ["LARGEST_FILE", "midi_of", "read_performance"]

# Bytes. A concert is half a megabyte; what is much larger was made to be large.
LARGEST_FILE = 20_000_000
# A day of music; a longer file has a broken duration.
_LONGEST_SECONDS = 60 * 60 * 24
_HEADER_BYTES = 14


def read_performance(path: str | Path, *, name: str | None = None) -> Performance:
    """All notes of a MIDI file but those of drums, as they sound on one piano.

    The sustain pedal holds a note until it is released, or the same pitch is struck again; one that
    is never released holds to where the last other note ends. The tracks of one program share their
    pedals, and those of a track without notes are everybody's. Silence before the first note is
    left out. Starts and ends are moved to the nearest 10 ms.

    Args:
        path: a MIDI file of type 0 or 1.
        name: of the performance; None takes the file's.

    Raises:
        ScoreError: if the file is missing, too large, broken, of type 2, counts time in frames, or
            holds no note.
    """
    path = Path(path)
    score = _read(path)
    melodic = [track for track in score.tracks if not track.is_drum and len(track.notes)]
    without_notes = [track for track in score.tracks if not len(track.notes)]
    starts, releases, ends, pitches, velocities = [], [], [], [], []
    for program in sorted({track.program for track in melodic}):
        tracks = [track for track in melodic if track.program == program]
        notes = [track.notes.numpy() for track in tracks]
        start = _column(notes, "time")
        starts.append(start)
        releases.append(start + _column(notes, "duration"))
        ends.append(sustained(releases[-1], pedals_in([*tracks, *without_notes])))
        pitches.append(_column(notes, "pitch"))
        velocities.append(_column(notes, "velocity"))
    if not starts:
        drums = " but those of drums" if any(len(track.notes) for track in score.tracks) else ""
        raise ScoreError(f"{path}: holds no note that ends{drums}")
    start, release, end = map(np.concatenate, (starts, releases, ends))
    end = np.minimum(end, max(release.max(), end[np.isfinite(end)].max(initial=0)))
    if not (start.min() >= 0 and end.max() <= _LONGEST_SECONDS):
        raise ScoreError(
            f"{path}: must be at most {_LONGEST_SECONDS:,} seconds long, got {end.max():,.0f}"
        )
    in_steps = [np.rint(seconds * STEPS_PER_SECOND).astype(np.int64) for seconds in (start, end)]
    first = in_steps[0].min()
    return performance_of(
        name if name is not None else path.name,
        in_steps[0] - first,
        in_steps[1] - first,
        np.concatenate(pitches),
        np.concatenate(velocities).clip(1, 127),
    )


def midi_of(performance: Performance) -> bytes:
    """The performance as a standard MIDI file with one piano track, 10 ms to the tick.

    Args:
        performance: any.

    Returns:
        The bytes of a `.mid` file.
    """
    # 60 quarters a minute of as many ticks as there are steps in a second.
    score: Any = Score(STEPS_PER_SECOND)
    score.tempos.append(Tempo(0, qpm=60.0))
    piano: Any = Track(name="Piano", program=0)
    columns = (performance.starts, performance.ends, performance.pitches, performance.velocities)
    for start, end, pitch, velocity in zip(*(column.tolist() for column in columns), strict=True):
        piano.notes.append(Note(start, end - start, pitch, velocity))
    score.tracks.append(piano)
    return score.dumps_midi()


def _read(path: Path) -> Any:
    """The file with its times in seconds."""
    try:
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise ScoreError(f"{path}: must be at most {LARGEST_FILE:,} bytes, got {size:,}")
        raw = read_whole(path)
    except OSError as error:
        raise ScoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    if raw[:4] != b"MThd" or len(raw) < _HEADER_BYTES:
        raise ScoreError(f"{path}: must be a MIDI file, and begins like none")
    kind, division = (int.from_bytes(raw[at : at + 2], "big") for at in (8, 12))
    if kind == 2 or not 0 < division < 0x8000:
        time = "quarters" if 0 < division < 0x8000 else "frames or not at all"
        raise ScoreError(
            f"{path}: must be of type 0 or 1 and count time in quarters, got type {kind} and {time}"
        )
    try:
        score: Any = Score.from_midi(raw)
        score.tracks.extend(tracks_of_pedals(raw))
        return score.to("second")
    except (RuntimeError, ValueError, IndexError, OverflowError) as error:
        reason = " ".join(str(error).split()).removesuffix(": iostream error")
        raise ScoreError(f"{path}: broken MIDI file: {reason}") from error


def _column(tracks: list[dict[str, ndarray]], name: str) -> Float64[ndarray, "entries"]:
    return np.concatenate([track[name].astype(np.float64) for track in tracks])
