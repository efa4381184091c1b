"""A small reader of MusicXML, plain or compressed, onto the grid of sixteenths.

What it does with what a score may hold:

- **Repeats are not played**: each bar comes once, and of alternative endings only the last.
  Copies inside a piece would make held-out scores look better than they are.
- **Off the grid**: a step holds the note that sounds at the instant when the step begins. A note
  that begins between two steps is struck at the next one, and one that is over by then is lost.
- **Ties**: a tied continuation is held, not struck.
- **Chords** in one part: the highest note. **Several voices** in one part: the first one.
- **Grace notes** and cue notes are left out.
- **Pick-up**: a first bar that is shorter than its time signature. Silence before the first and
  after the last note is left out, at the beginning as if it were missing from its bar.
- **Key and time signature** are the first ones. Bars are counted on in the first metre after it
  changes or an odd bar; eight chorales of the corpus have such places, and all keep to the beat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from .mxl import read_xml
from .piece import SILENCE, STEPS_PER_QUARTER, VOICES, Piece, strikes_of
from .score_lines import LONGEST, Line, Lines, ScoreError, steps_in_bar

__all__ = ["read_lines", "read_piece"]

_SEMITONES = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}


@dataclass(frozen=True)
class _Note:
    # Sixteenths from the beginning of its bar; pitch is None for a rest.
    start: Fraction
    end: Fraction
    pitch: int | None
    tied: bool


@dataclass(frozen=True)
class _Bar:
    # The highest note of each chord, and how many are below those.
    notes: list[_Note]
    below: int
    length: Fraction


def read_piece(path: str | Path) -> Piece:
    """The four-part piece in a MusicXML file, with S A T B in the order of the parts.

    Args:
        path: a `.musicxml`, `.xml` or `.mxl` file; the content decides, not the name.

    Returns:
        The piece, named as the file without its ending.

    Raises:
        ScoreError: if the file cannot be read or has not exactly four parts.
    """
    lines = read_lines(path)
    parts = lines.pitches.shape[1]
    if parts != len(VOICES):
        raise ScoreError(f"{path}: a four-part piece must have 4 parts, got {parts}")
    return lines.piece(Path(path).stem)


def read_lines(path: str | Path) -> Lines:
    """All parts of a MusicXML file on the grid of sixteenths.

    Args:
        path: a `.musicxml`, `.xml` or `.mxl` file; the content decides, not the name.

    Returns:
        One column of pitches and onsets per part.

    Raises:
        ScoreError: if the file cannot be read, names a part that it does not hold, or has no note.
    """
    root = read_xml(path)
    parts = root.findall("part")
    listed = len(root.findall("part-list/score-part"))
    if not parts or len(parts) < listed:
        raise ScoreError(f"{path}: lists {listed} parts and holds {len(parts)}")
    scores = [list(_bars(part, f"{path}: part {n}")) for n, part in enumerate(parts, 1)]
    counts = [len(score) for score in scores]
    if len(set(counts)) > 1:
        raise ScoreError(f"{path}: the parts must have equally many bars, got {counts}")
    skipped = set().union(*(_earlier_endings(part) for part in parts))
    kept = [bar for bar in range(counts[0]) if bar not in skipped]
    lengths = [max(score[bar].length for score in scores) for bar in kept]
    steps = ceil(sum(lengths, Fraction(0)))
    # Together, so that a thousand parts do not fill the memory.
    if steps * len(parts) > LONGEST * len(VOICES):
        raise ScoreError(
            f"{path}: must be at most {LONGEST} sixteenths long in four parts, "
            f"got {steps} in {len(parts)}"
        )
    lines = [Line(steps) for _ in parts]
    start = Fraction(0)
    for bar, length in zip(kept, lengths, strict=True):
        for line, score in zip(lines, scores, strict=True):
            _write(score[bar].notes, start, line)
        start += length
    pitches = np.stack([line.pitches for line in lines], axis=1)
    onsets = np.stack([line.onsets for line in lines], axis=1)
    sounding = (pitches != SILENCE).any(axis=1).nonzero()[0]
    if not len(sounding):
        raise ScoreError(f"{path}: holds no note")
    trimmed = slice(sounding[0], sounding[-1] + 1)
    steps_per_bar = _steps_per_bar(parts[0], str(path))
    pickup = max(0, steps_per_bar - ceil(lengths[0])) + int(sounding[0])
    return Lines(
        pitches[trimmed],
        (onsets | strikes_of(pitches))[trimmed],
        pickup % steps_per_bar,
        steps_per_bar,
        _fifths(parts[0], str(path)),
        tuple(
            line.unsung + sum(score[bar].below for bar in kept)
            for line, score in zip(lines, scores, strict=True)
        ),
    )


def _write(notes: list[_Note], origin: Fraction, line: Line) -> None:
    for note in notes:
        if note.pitch is not None:
            first, last = ceil(origin + note.start), ceil(origin + note.end)
            line.write(first, last, note.pitch, tied=note.tied)


def _bars(part: Element, where: str) -> Iterator[_Bar]:
    """Each bar of a part, repeats not played, endings not yet left out."""
    divisions = Fraction(1)
    first_voice = next((_voice(note) for note in part.iter("note")), "1")
    for number, measure in enumerate(part.findall("measure"), 1):
        here = f"{where}, bar {measure.get('number', number)}"
        notes: list[_Note] = []
        below = 0
        now = begun = reach = Fraction(0)
        for element in measure:
            if element.tag == "attributes" and element.find("divisions") is not None:
                divisions = _number(element, "divisions", here)
                if divisions <= 0:
                    raise ScoreError(f"{here}: divisions must be positive, got {divisions}")
            elif element.tag in ("backup", "forward"):
                lasts = _duration(element, here) * STEPS_PER_QUARTER / divisions
                now = max(Fraction(0), now - lasts if element.tag == "backup" else now + lasts)
            elif element.tag == "note" and element.find("grace") is None:
                lasts = _duration(element, here) * STEPS_PER_QUARTER / divisions
                chord = element.find("chord") is not None and bool(notes)
                # A chord's notes begin together, and the first of them tells where it goes on.
                begun = begun if chord else now
                note = _Note(begun, begun + lasts, _pitch(element, here), _tied(element))
                if _voice(element) == first_voice:
                    below += _add(notes, note, chord)
                now = now if chord else now + lasts
            reach = max(reach, now)
        yield _Bar(notes, below, reach)


def _add(notes: list[_Note], note: _Note, chord: bool) -> bool:
    """Add a note, of a chord the highest only; whether one that is struck is left out for that."""
    if not chord:
        notes.append(note)
        return False
    if note.pitch is None:
        return False
    before = notes[-1]
    if before.pitch is None or note.pitch > before.pitch:
        notes[-1], note = note, before
    return note.pitch is not None and not note.tied


def _pitch(note: Element, where: str) -> int | None:
    if note.find("rest") is not None or note.find("cue") is not None:
        return None
    step = note.findtext("pitch/step", "").strip()
    if step not in _SEMITONES:
        raise ScoreError(f"{where}: a note has neither a rest nor a pitch with a step A..G")
    alter = _number(note, "pitch/alter", where) if note.find("pitch/alter") is not None else 0
    midi = 12 * (_number(note, "pitch/octave", where) + 1) + _SEMITONES[step] + alter
    if midi.denominator != 1 or not 0 <= midi <= 127:
        raise ScoreError(f"{where}: a pitch must be a MIDI pitch 0..127, got {midi}")
    return int(midi)


def _tied(note: Element) -> bool:
    return any(tie.get("type") == "stop" for tie in note.findall("tie"))


def _voice(note: Element) -> str:
    return note.findtext("voice", "1").strip()


def _earlier_endings(part: Element) -> set[int]:
    """The bars of those alternative endings after which another ending follows at once."""
    begin, endings = None, []
    for bar, measure in enumerate(part.findall("measure")):
        kinds = [ending.get("type") for ending in measure.findall("barline/ending")]
        if "start" in kinds:
            begin = bar
        if begin is not None and ("stop" in kinds or "discontinue" in kinds):
            endings.append((begin, bar))
            begin = None
    begins = {begin for begin, _ in endings} | ({begin} if begin is not None else set())
    return {bar for begin, end in endings if end + 1 in begins for bar in range(begin, end + 1)}


def _steps_per_bar(part: Element, where: str) -> int:
    time = next((time for time in part.iter("time") if time.find("beats") is not None), None)
    if time is None:
        return 4 * STEPS_PER_QUARTER
    # An additive metre is written "3+2".
    terms = time.findtext("beats", "").split("+")
    beats = sum((_fraction(term, "<beats> of <time>", where) for term in terms), Fraction(0))
    return steps_in_bar(beats, _number(time, "beat-type", where), where)


def _fifths(part: Element, where: str) -> int:
    key = next((key for key in part.iter("key") if key.find("fifths") is not None), None)
    fifths = Fraction(0) if key is None else _number(key, "fifths", where)
    if fifths.denominator != 1 or not -7 <= fifths <= 7:
        raise ScoreError(f"{where}: a key must have -7..7 fifths, got {fifths}")
    return int(fifths)


def _duration(element: Element, where: str) -> Fraction:
    duration = _number(element, "duration", where)
    if duration < 0:
        raise ScoreError(
            f"{where}: <duration> of <{element.tag}> must be at least 0, got {duration}"
        )
    return duration


def _number(element: Element, path: str, where: str) -> Fraction:
    return _fraction(element.findtext(path, ""), f"<{path}> of <{element.tag}>", where)


def _fraction(text: str, what: str, where: str) -> Fraction:
    text = text.strip()
    try:
        # Only digits, sign and point: "1e999999999" is a number too, one that fills the memory.
        return Fraction(text if len(text) < 20 and "e" not in text.lower() else "")
    except (ValueError, ZeroDivisionError):
        raise ScoreError(f"{where}: {what} must be a number, got {text[:60]!r}") from None
