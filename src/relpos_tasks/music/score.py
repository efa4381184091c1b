"""A piece as MusicXML (through music21) and as engraved pages (through verovio)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby, pairwise

import verovio
from music21 import (
    bar,
    clef,
    duration,
    instrument,
    key,
    layout,
    metadata,
    meter,
    note,
    pitch,
    stream,
    tie,
)
from music21.musicxml.m21ToXml import GeneralObjectExporter
from music21.stream.enums import ShowNumber

from .piece import SILENCE, STEPS_PER_QUARTER, VOICES, Piece

__all__ = ["musicxml_of", "score_of", "svg_pages"]

_CLEFS = (clef.TrebleClef, clef.TrebleClef, clef.Treble8vbClef, clef.BassClef)
# Lengths in sixteenths that one note head with at most one dot can have.
_HEADS = (24, 16, 12, 8, 6, 4, 3, 2, 1)
_METRES = {24: "3/2"}


def score_of(piece: Piece, *, title: str | None = None) -> stream.Score:
    """The piece as a music21 score: four staves, bars, ties over bar lines, clefs, key and metre.

    Args:
        piece: a piece; where its onsets are not known, a note lasts until the pitch changes.
        title: the heading; None takes the piece's name.

    Returns:
        A score of four parts named after the voices.

    Raises:
        ValueError: if the piece has no step.
    """
    if not piece.steps:
        raise ValueError(f"score_of: piece must have a step, got {piece.name!r} without any")
    score = stream.Score()
    heading = title if title is not None else piece.name
    # A file's name may have characters that XML has not.
    heading = "".join(letter if letter.isprintable() else "?" for letter in heading)
    score.metadata = metadata.Metadata(title=heading)
    parts = [_part(piece, voice) for voice in range(len(VOICES))]
    for part in parts:
        score.insert(0, part)
    group = layout.StaffGroup(parts, symbol="bracket", barTogether=True)
    group.id = "choir"
    score.insert(0, group)
    return score


def musicxml_of(piece: Piece, *, title: str | None = None) -> str:
    """The piece as MusicXML text, the same on every day and machine.

    Args:
        piece: a piece.
        title: the heading; None takes the piece's name.

    Returns:
        A whole uncompressed MusicXML document.

    Raises:
        ValueError: if the piece has no step.
    """
    text = GeneralObjectExporter(score_of(piece, title=title)).parse().decode()
    # music21 writes the day of the export.
    return re.sub(r"\s*<encoding-date>.*?</encoding-date>", "", text)


def svg_pages(
    musicxml: str, *, width: int = 2100, height: int = 2970, title: bool = True
) -> list[str]:
    """The pages of an engraved score.

    Args:
        musicxml: a whole MusicXML document.
        width: of a page, in tenths of a millimetre.
        height: the most a page may take, in tenths of a millimetre; the last is cut to its music.
        title: whether it stands above, which a narrow page would cut off.

    Returns:
        One SVG document per page.

    Raises:
        ValueError: if verovio cannot read the score.
    """
    engraver = verovio.toolkit()
    engraver.setOptions(
        {
            "pageWidth": width,
            "pageHeight": height,
            "adjustPageHeight": True,
            "breaks": "auto",
            "header": "auto" if title else "none",
            "footer": "none",
            "scale": 40,
            "svgViewBox": True,
            "xmlIdSeed": 1,
        }
    )
    if not engraver.loadData(musicxml):
        raise ValueError(f"svg_pages: musicxml must be MusicXML, got {musicxml[:60]!r}")
    return [engraver.renderToSVG(page) for page in range(1, engraver.getPageCount() + 1)]


def _part(piece: Piece, voice: int) -> stream.Part:
    part = stream.Part(id=VOICES[voice])
    singers = instrument.Choir()
    singers.partName = VOICES[voice].capitalize()
    singers.partAbbreviation = singers.partName[0]
    # music21 would draw them by lot.
    singers.partId, singers.instrumentId = f"P{voice + 1}", f"P{voice + 1}-I1"
    part.insert(0, singers)
    measures = []
    heads = groupby(_heads(piece, voice), key=lambda head: head[0])
    for number, (_, bar_heads) in enumerate(heads, 0 if piece.pickup else 1):
        measure = stream.Measure(number=number)
        if not measures:
            measure.append([_CLEFS[voice](), key.KeySignature(piece.fifths), _metre(piece)])
            measure.paddingLeft = piece.pickup / STEPS_PER_QUARTER
            if piece.pickup:
                measure.showNumber = ShowNumber.NEVER
        measure.append([element for _, element in bar_heads])
        measures.append(measure)
    measures[-1].rightBarline = bar.Barline("final")
    part.append(measures)
    part.makeAccidentals(inPlace=True)
    part.makeBeams(inPlace=True)
    return part


def _heads(piece: Piece, voice: int) -> Iterator[tuple[int, note.GeneralNote]]:
    """The note heads and rests of a voice, each with the number of its bar."""
    pitches, strikes = piece.pitches[:, voice], piece.strikes[:, voice]
    breaks = strikes.copy()
    breaks[0] = True
    breaks[1:] |= (pitches[1:] == SILENCE) != (pitches[:-1] == SILENCE)
    starts = [*breaks.nonzero()[0].tolist(), piece.steps]
    for start, end in pairwise(starts):
        lengths = list(_lengths(start + piece.pickup, end + piece.pickup, piece.steps_per_bar))
        at = start + piece.pickup
        for number, length in enumerate(lengths):
            lasts = duration.Duration(length / STEPS_PER_QUARTER)
            if pitches[start] == SILENCE:
                yield at // piece.steps_per_bar, note.Rest(duration=lasts)
            else:
                head = note.Note(_spelled(int(pitches[start]), piece.fifths), duration=lasts)
                if len(lengths) > 1:
                    place = "start" if number == 0 else "stop"
                    head.tie = tie.Tie(place if number in (0, len(lengths) - 1) else "continue")
                yield at // piece.steps_per_bar, head
            at += length


def _lengths(start: int, end: int, steps_per_bar: int) -> Iterator[int]:
    """The lengths of the tied heads for a note, so that no head crosses a bar line."""
    while start < end:
        length = min(end, (start // steps_per_bar + 1) * steps_per_bar) - start
        if length not in _HEADS:
            # Up to the next beat first, then in heads as long as they come.
            off_beat = -start % steps_per_bar % STEPS_PER_QUARTER
            length = off_beat or next(head for head in _HEADS if head <= length)
        yield length
        start += length


def _metre(piece: Piece) -> meter.TimeSignature:
    steps = piece.steps_per_bar
    unit = next(unit for unit in (4, 2, 1) if steps % unit == 0)
    return meter.TimeSignature(_METRES.get(steps, f"{steps // unit}/{16 // unit}"))


def _spelled(midi: int, fifths: int) -> pitch.Pitch:
    """The pitch, named by the line of fifths from three below the major tonic to eight above."""
    place = (7 * midi - (fifths - 3)) % 12 + fifths - 3
    accidentals, letter = divmod(place + 1, 7)
    octave = (midi - accidentals) // 12 - 1
    sign = "#" * accidentals if accidentals > 0 else "-" * -accidentals
    return pitch.Pitch(f"{'FCGDAEB'[letter]}{sign}{octave}")
