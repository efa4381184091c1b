"""A soprano from a MIDI or MusicXML file, on the grid of sixteenths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Bool, Int16
from numpy import ndarray

from ..files import read_whole
from .midi import read_midi
from .musicxml import read_lines
from .piece import SILENCE
from .score_lines import Lines, ScoreError

__all__ = ["Melody", "note_name", "read_melody"]

_NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


@dataclass(frozen=True, eq=False)
class Melody:
    """One voice on the grid; the fields but the last are those of `Piece`, of one voice.

    Args:
        pitches: MIDI pitches, -1 is silence.
        onsets: True where a note is struck.
        pickup: steps of the bar that are missing before step 0.
        steps_per_bar: steps in a whole bar.
        fifths: sharps of the key signature; flats are negative.
        unsung: notes of the file, of MusicXML those of the part's first voice, that the grid has
            no room for.
    """

    pitches: Int16[ndarray, "steps"]
    onsets: Bool[ndarray, "steps"]
    pickup: int
    steps_per_bar: int
    fifths: int
    unsung: int = 0


def read_melody(path: str | Path, *, lowest: int = 0, highest: int = 127) -> Melody:
    """The melody in a file: of a MusicXML score the first part, of a MIDI file the highest notes.

    Where several notes sound at once the highest one counts; `Melody.unsung` is how many are lost.
    MIDI notes are struck and released at the nearest sixteenth and last at least one; drums are
    left out. Silence before the first note and after the last is left out.

    Args:
        path: a `.mid`, `.musicxml`, `.xml` or `.mxl` file; the content decides, not the name.
        lowest: the lowest MIDI pitch to let pass.
        highest: the highest MIDI pitch to let pass.

    Returns:
        The melody.

    Raises:
        ScoreError: if the file is missing, is neither MIDI nor MusicXML, holds no note, or holds
            one out of the range.
    """
    try:
        head = read_whole(path)[:4]
    except OSError as error:
        raise ScoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    if head == b"MThd":
        melody = _first_line(path, read_midi(path))
    elif head.startswith(b"PK") or head.lstrip(b"\xef\xbb\xbf\xff\xfe\x00 \r\n\t").startswith(b"<"):
        melody = _first_line(path, read_lines(path))
    else:
        raise ScoreError(f"{path}: must be a MIDI or a MusicXML file, and begins like neither")
    outside = (melody.pitches != SILENCE) & ((melody.pitches < lowest) | (melody.pitches > highest))
    if outside.any():
        step = int(outside.argmax())
        # A pick-up is bar 0, as scores count.
        bar = (step + melody.pickup) // melody.steps_per_bar + (melody.pickup == 0)
        raise ScoreError(
            f"{path}: the melody must lie in {note_name(lowest)}..{note_name(highest)}, "
            f"got {note_name(int(melody.pitches[step]))} in bar {bar}"
        )
    return melody


def note_name(midi: int) -> str:
    """The name of a MIDI pitch, with sharps; middle C is C4.

    Args:
        midi: a MIDI pitch.

    >>> note_name(60), note_name(70)
    ('C4', 'A#4')
    """
    return f"{_NAMES[midi % 12]}{midi // 12 - 1}"


def _first_line(path: str | Path, lines: Lines) -> Melody:
    pitches, onsets = lines.pitches[:, 0], lines.onsets[:, 0]
    sounding = (pitches != SILENCE).nonzero()[0]
    if not len(sounding):
        raise ScoreError(f"{path}: holds no note in its first part")
    kept = slice(sounding[0], sounding[-1] + 1)
    pickup = (lines.pickup + int(sounding[0])) % lines.steps_per_bar
    return Melody(
        pitches[kept], onsets[kept], pickup, lines.steps_per_bar, lines.fifths, lines.unsung[0]
    )
