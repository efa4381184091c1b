"""Pieces as token sequences: S A T B of step 0, S A T B of step 1, ... (Huang et al. 2018, 4.1).

We begin each piece with a token of its own, and where onsets are known a held pitch is another
token than the same pitch struck.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from relpos.checks import check_count

from .piece import SILENCE, VOICES, Piece, strikes_of

__all__ = ["BEGIN", "REST", "Vocabulary", "vocabulary_of"]

BEGIN = 0
REST = 1
_FIRST_PITCH = 2


@dataclass(frozen=True)
class Vocabulary:
    """Token ids: 0 begins a piece, 1 is silence, then pitches struck, then pitches held.

    Args:
        lowest: the lowest MIDI pitch.
        highest: the highest MIDI pitch.
        onsets: False has one token per pitch, struck or held.

    Raises:
        ValueError: unless `0 <= lowest <= highest <= 127`.

    >>> vocabulary = Vocabulary(lowest=60, highest=61, onsets=True)
    >>> vocabulary.size
    6
    >>> [vocabulary.name(token) for token in range(6)]
    ['begin', 'silence', '60', '61', '60 held', '61 held']
    """

    lowest: int
    highest: int
    onsets: bool = True

    def __post_init__(self) -> None:
        for name in ("lowest", "highest"):
            check_count("Vocabulary", name, getattr(self, name), least=0)
        if not isinstance(self.onsets, bool):
            raise ValueError(f"Vocabulary: onsets must be True or False, got {self.onsets!r}")
        if not self.lowest <= self.highest <= 127:
            raise ValueError(
                "Vocabulary: lowest and highest must be MIDI pitches 0..127 in this order, "
                f"got {self.lowest} and {self.highest}"
            )

    @property
    def pitches(self) -> int:
        """How many pitches there are."""
        return self.highest - self.lowest + 1

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return _FIRST_PITCH + self.pitches * (2 if self.onsets else 1)

    def name(self, token: int) -> str:
        """What a token means, in words."""
        if token < _FIRST_PITCH:
            return ("begin", "silence")[token]
        held, pitch = divmod(token - _FIRST_PITCH, self.pitches)
        return f"{self.lowest + pitch}{' held' if held else ''}"

    def struck(self, pitch: int) -> int:
        """The token that strikes a MIDI pitch.

        >>> Vocabulary(60, 61).struck(61)
        3
        """
        return pitch - self.lowest + _FIRST_PITCH

    def held(self, token: int) -> int:
        """The token that goes on with what a token sounds; silence goes on as silence.

        >>> [Vocabulary(60, 61).held(token) for token in range(6)]
        [1, 1, 4, 5, 4, 5]
        """
        if token < _FIRST_PITCH:
            return REST
        is_struck = self.onsets and token < _FIRST_PITCH + self.pitches
        return token + self.pitches * is_struck

    def encode(self, piece: Piece) -> Int64[ndarray, "tokens"]:
        """The begin token, then S A T B of each step: `1 + 4 * steps` tokens.

        Args:
            piece: its pitches must lie in this vocabulary, and its onsets must be known where
                the vocabulary has them.

        Returns:
            Token ids below `size`.

        Raises:
            ValueError: if the piece does not fit the vocabulary.
        """
        if self.onsets and not piece.has_onsets:
            raise ValueError(
                f"Vocabulary.encode: piece must have onsets, got {piece.name!r} without; "
                "use Vocabulary(..., onsets=False)"
            )
        pitches = piece.pitches.astype(np.int64)
        sounds = pitches != SILENCE
        outside = sounds & ((pitches < self.lowest) | (pitches > self.highest))
        if outside.any():
            step, voice = np.argwhere(outside)[0]
            raise ValueError(
                f"Vocabulary.encode: pitches must be in {self.lowest}..{self.highest}, "
                f"got {pitches[step, voice]} in step {step} of the {VOICES[voice]} "
                f"of {piece.name!r}"
            )
        tokens = np.where(sounds, pitches - self.lowest + _FIRST_PITCH, REST)
        if self.onsets:
            tokens += self.pitches * (sounds & ~piece.onsets)
        return np.concatenate([[BEGIN], tokens.ravel()])

    def decode(
        self,
        tokens: Int64[ndarray, "tokens"],
        *,
        name: str = "",
        pickup: int = 0,
        steps_per_bar: int = 16,
        fifths: int = 0,
    ) -> Piece:
        """The piece that a token sequence stands for; any sequence of tokens has one.

        A begin token in front may be missing. One further on counts as silence, a held pitch
        that does not continue the voice's note as struck, and an unfinished last step not at all.

        Args:
            tokens: token ids.
            name: the piece's name.
            pickup: steps missing before the first bar.
            steps_per_bar: steps in a bar.
            fifths: sharps of the key signature.

        Returns:
            A piece, with onsets if the vocabulary has them.

        Raises:
            ValueError: if a token is not in the vocabulary.

        >>> vocabulary = Vocabulary(lowest=60, highest=61)
        >>> piece = vocabulary.decode(np.array([0, 2, 2, 1, 5, 4, 2, 1, 4]))
        >>> piece.pitches.tolist()
        [[60, 60, -1, 61], [60, 60, -1, 60]]
        >>> piece.onsets.tolist()
        [[True, True, False, True], [False, True, False, True]]
        """
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.size):
            raise ValueError(
                f"Vocabulary.decode: tokens must be in 0..{self.size - 1}, "
                f"got {tokens.min()}..{tokens.max()}"
            )
        body = tokens[1:] if tokens.size and tokens[0] == BEGIN else tokens
        grid = body[: len(body) // len(VOICES) * len(VOICES)].reshape(-1, len(VOICES))
        sounds = grid >= _FIRST_PITCH
        held, pitch = np.divmod(grid - _FIRST_PITCH, self.pitches)
        pitches = np.where(sounds, pitch + self.lowest, SILENCE).astype(np.int16)
        onsets = np.zeros(grid.shape, np.bool_)
        if self.onsets:
            onsets = (sounds & (held == 0)) | strikes_of(pitches)
        return Piece(name, pitches, onsets, pickup, steps_per_bar, fifths, self.onsets)


def vocabulary_of(pieces: Iterable[Piece], *, transposition: int = 6) -> Vocabulary:
    """The vocabulary that covers some pieces, and as many semitones above and below them.

    Args:
        pieces: the training pieces.
        transposition: semitones to add at either end, for pieces beyond the training range.

    Returns:
        A vocabulary with onsets if all pieces have them.

    Raises:
        ValueError: if there is no note in the pieces.
    """
    pieces = list(pieces)
    sounding = [piece.pitches[piece.pitches != SILENCE] for piece in pieces]
    pitches = np.concatenate(sounding) if sounding else np.zeros(0)
    if not pitches.size:
        raise ValueError(f"vocabulary_of: pieces must hold a note, got {len(pieces)} without any")
    return Vocabulary(
        lowest=max(0, int(pitches.min()) - transposition),
        highest=min(127, int(pitches.max()) + transposition),
        onsets=all(piece.has_onsets for piece in pieces),
    )
