"""A piece as MIDI and as sound (both through pretty_midi)."""

from __future__ import annotations

import io

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from pretty_midi import Instrument, KeySignature, Note, PrettyMIDI, TimeSignature

from .piece import SILENCE, STEPS_PER_QUARTER, VOICES, Piece
from .wav import SAMPLE_RATE, wav_from

__all__ = ["midi_of", "wav_of"]

_CHURCH_ORGAN = 19
# Strengths of the harmonics 1, 2, 3, 4, 6, 8: the stops of a small organ.
_HARMONICS = {1: 1.0, 2: 0.5, 3: 0.2, 4: 0.25, 6: 0.06, 8: 0.08}
# A breath before the next note, in seconds, so that a struck repetition can be heard.
_GAP = 0.03
# How long a pipe takes to speak, in seconds.
_ATTACK = 0.04


def midi_of(piece: Piece, *, tempo: float = 72.0) -> bytes:
    """The piece as a standard MIDI file with one organ track per voice.

    Args:
        piece: a piece; where its onsets are not known, a note lasts until the pitch changes.
        tempo: quarters per minute.

    Returns:
        The bytes of a `.mid` file. Its first bar is filled up by silence if there is a pick-up.

    Raises:
        ValueError: if the tempo is not positive.
    """
    if not tempo > 0:
        raise ValueError(f"midi_of: tempo must be positive, got {tempo}")
    file = io.BytesIO()
    _performance(piece, tempo, piece.pickup, gap=0.0).write(file)
    return file.getvalue()


def wav_of(piece: Piece, *, tempo: float = 72.0) -> bytes:
    """The piece as sound: 16-bit mono at 22.05 kHz, an organ of six harmonics.

    Args:
        piece: a piece.
        tempo: quarters per minute.

    Returns:
        The bytes of a `.wav` file whose loudest sample is 0.9 of the full scale.

    Raises:
        ValueError: if the tempo is not positive.
    """
    if not tempo > 0:
        raise ValueError(f"wav_of: tempo must be positive, got {tempo}")
    performance = _performance(piece, tempo, 0, gap=_GAP)
    return wav_from(performance.synthesize(fs=SAMPLE_RATE, wave=_organ, normalize=False))


def _performance(piece: Piece, tempo: float, before: int, *, gap: float) -> PrettyMIDI:
    """The piece after some steps of silence; each note ends `gap` seconds early."""
    step = 60 / tempo / STEPS_PER_QUARTER
    performance = PrettyMIDI(initial_tempo=tempo)
    unit = next(unit for unit in (4, 2, 1) if piece.steps_per_bar % unit == 0)
    performance.time_signature_changes.append(
        TimeSignature(piece.steps_per_bar // unit, 16 // unit, 0.0)
    )
    # pretty_midi counts keys in semitones from C major.
    performance.key_signature_changes.append(KeySignature(7 * piece.fifths % 12, 0.0))
    for voice, name in enumerate(VOICES):
        organ = Instrument(_CHURCH_ORGAN, name=name.capitalize())
        for first, last in _notes(piece, voice):
            start, end = (before + first) * step, (before + last) * step
            organ.notes.append(
                Note(80, int(piece.pitches[first, voice]), start, max(end - gap, (start + end) / 2))
            )
        performance.instruments.append(organ)
    return performance


def _notes(piece: Piece, voice: int) -> list[tuple[int, int]]:
    """First step and step after the last of each note of a voice."""
    silent = piece.pitches[:, voice] == SILENCE
    starts = piece.strikes[:, voice].nonzero()[0]
    ends = np.append((piece.strikes[:, voice] | silent).nonzero()[0], piece.steps)
    return [(int(start), int(ends[np.searchsorted(ends, start + 1)])) for start in starts]


def _organ(phase: Float[ndarray, "samples"]) -> Float[ndarray, "samples"]:
    """A note of an organ pipe; pretty_midi lets it die away within a second or two."""
    seconds = np.arange(len(phase)) / SAMPLE_RATE
    # Half of that decay is taken back, and the note begins without a click.
    envelope = np.minimum(1, seconds / _ATTACK) * np.exp(seconds / 2)
    return envelope * sum(
        (strength * np.sin(n * phase) for n, strength in _HARMONICS.items()),
        np.zeros_like(phase),
    )
