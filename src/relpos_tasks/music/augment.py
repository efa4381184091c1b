"""Transpositions that keep every voice where it can be sung."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from jaxtyping import Int16
from numpy import ndarray

from .piece import SILENCE, VOICES, Piece

__all__ = ["semitones_within", "transpose", "voice_ranges"]


def voice_ranges(pieces: Iterable[Piece]) -> Int16[ndarray, "4 2"]:
    """The lowest and the highest MIDI pitch of each voice over some pieces.

    Args:
        pieces: the training pieces.

    Returns:
        One row `lowest, highest` per voice.

    Raises:
        ValueError: if a voice has no note.
    """
    pitches = np.concatenate([np.zeros((0, 4), np.int16), *(piece.pitches for piece in pieces)])
    silent = (pitches == SILENCE).all(axis=0)
    if silent.any():
        raise ValueError(
            f"voice_ranges: every voice must have a note, got none in the {VOICES[silent.argmax()]}"
        )
    lowest = np.where(pitches == SILENCE, np.int16(127), pitches).min(axis=0)
    return np.stack([lowest, pitches.max(axis=0)], axis=1)


def semitones_within(piece: Piece, ranges: Int16[ndarray, "4 2"], *, limit: int = 6) -> list[int]:
    """The transpositions of a piece under which every voice stays in its range.

    Args:
        piece: a piece.
        ranges: what `voice_ranges` found.
        limit: the most semitones up or down.

    Returns:
        Semitones in rising order; always with 0, the piece as it is.
    """
    up, down = limit, limit
    for line, (lowest, highest) in zip(piece.pitches.T, ranges, strict=True):
        notes = line[line != SILENCE]
        if notes.size:
            up = min(up, int(highest) - int(notes.max()))
            down = min(down, int(notes.min()) - int(lowest))
    return list(range(-max(down, 0), max(up, 0) + 1))


def transpose(piece: Piece, semitones: int) -> Piece:
    """The piece some semitones higher or lower, in a key signature of at most six sharps or flats.

    Args:
        piece: a piece.
        semitones: upwards; negative is downwards.

    Returns:
        A piece of the same name with the same onsets.

    Raises:
        ValueError: if a pitch leaves 0..127.
    """
    if semitones == 0:
        return piece
    sounds = piece.pitches != SILENCE
    moved = piece.pitches + np.int16(semitones)
    outside = sounds & ((moved < 0) | (moved > 127))
    if outside.any():
        raise ValueError(
            f"transpose: pitches must stay in 0..127, got {moved[outside][0]} "
            f"after {semitones} semitones"
        )
    # A semitone is seven fifths; -5..6 names each of the twelve signatures once.
    fifths = (piece.fifths + 7 * semitones + 5) % 12 - 5
    return replace(piece, pitches=np.where(sounds, moved, piece.pitches), fifths=fifths)
