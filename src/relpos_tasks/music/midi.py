"""A MIDI file as one line of music on the grid of sixteenths (read by mido)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import mido

from ..files import read_whole
from .piece import STEPS_PER_QUARTER, strikes_of
from .score_lines import LONGEST, Line, Lines, ScoreError, steps_in_bar

__all__ = ["read_midi"]


def read_midi(path: str | Path) -> Lines:
    """The highest notes of a MIDI file as one line on the grid of sixteenths.

    Notes are struck and released at the nearest sixteenth and last at least one; drums are left
    out. The first metre and the first key count; without them it is 4/4 and C major.

    Args:
        path: a MIDI file of type 0 or 1.

    Returns:
        One column of pitches and onsets; the first bar is whole.

    Raises:
        ScoreError: if the file is broken, counts time in frames, or holds no note.
    """
    try:
        file = mido.MidiFile(file=io.BytesIO(read_whole(path)))
        ticks = file.ticks_per_beat
        events: list[tuple[int, Any]] = []
        now = 0
        for message in mido.merge_tracks(file.tracks):
            now += message.time
            events.append((now, message))
    except (OSError, EOFError, ValueError, LookupError, mido.KeySignatureError) as error:
        raise ScoreError(
            f"{path}: broken MIDI file: {str(error) or 'it ends too early'}"
        ) from error
    if ticks <= 0 or file.type == 2:
        raise ScoreError(f"{path}: must count time in quarters and play its tracks together")
    notes = _notes(events, STEPS_PER_QUARTER / ticks)
    if not notes:
        of_drums = any(m.type == "note_on" and m.channel == 9 for _, m in events)
        raise ScoreError(f"{path}: holds no note{' but those of drums' * of_drums}")
    steps = max(end for _, end, _ in notes)
    if steps > LONGEST:
        raise ScoreError(f"{path}: must be at most {LONGEST} sixteenths long, got {steps}")
    line = Line(steps)
    # From the lowest note to the highest, so that the highest is what remains; a later note of
    # the same pitch cuts the earlier one short.
    for start, end, pitch in sorted(set(notes), key=lambda note: (note[2], note[0])):
        line.write(start, end, pitch)
    bar = next((m for _, m in events if m.type == "time_signature"), None)
    steps_per_bar = 16 if bar is None else steps_in_bar(bar.numerator, bar.denominator, str(path))
    key = next((m.key for _, m in events if m.type == "key_signature"), "C")
    # What a higher note has covered comes back as a struck note.
    pitches = line.pitches[:, None]
    onsets = line.onsets[:, None] | strikes_of(pitches)
    return Lines(pitches, onsets, 0, steps_per_bar, _fifths(key), (line.unsung,))


def _notes(events: list[tuple[int, Any]], steps_per_tick: float) -> list[tuple[int, int, int]]:
    """Start, end (steps) and pitch of each note but the drums', on the nearest sixteenths."""
    sounding: dict[tuple[int, int], int] = {}
    notes = []
    for now, message in events:
        if message.type not in ("note_on", "note_off") or message.channel == 9:
            continue
        place = (message.channel, message.note)
        step = round(now * steps_per_tick)
        if place in sounding:
            start = sounding.pop(place)
            notes.append((start, max(step, start + 1), message.note))
        if message.type == "note_on" and message.velocity > 0:
            sounding[place] = step
    # A note that is never released lasts a sixteenth.
    notes.extend((start, start + 1, pitch) for (_, pitch), start in sounding.items())
    return notes


def _fifths(key: str) -> int:
    """Sharps of a key as mido names it: `"F#m"`, `"Bb"`."""
    major = not key.endswith("m")
    fifths = "FCGDAEB".index(key[0]) - 1 + 7 * key.count("#") - 7 * key.count("b")
    return fifths if major else fifths - 3
