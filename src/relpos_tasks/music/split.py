"""Pieces into train, valid and held-out, the same on every machine and in every order.

music21's corpus holds the same music under several BWV numbers, some of it transposed or with a
few notes changed. Such pieces always fall into the same part: two pieces are the same music when
a fifth of the chord progressions of one (`OVERLAP`; six different chords in a row on the beats,
up to transposition) stand in the other too. A fifth is where shared cadences end and shared
phrases begin. Another harmonisation of the same tune is not the same music.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .piece import SILENCE, STEPS_PER_QUARTER, VOICES, Piece

__all__ = ["OVERLAP", "Split", "same_music", "split_literature", "split_pieces"]

OVERLAP = 0.2
_CHORDS = 6


@dataclass(frozen=True)
class Split:
    """Pieces to train on, to watch while training, and to measure on at the end.

    `str(split)` is a line with the pieces and tokens (four per step and one to begin) in each.
    """

    train: tuple[Piece, ...]
    valid: tuple[Piece, ...]
    held_out: tuple[Piece, ...]

    def __str__(self) -> str:
        parts = (("train", self.train), ("valid", self.valid), ("held out", self.held_out))
        return "; ".join(
            f"{name} {len(pieces)} pieces, "
            f"{sum(1 + len(VOICES) * piece.steps for piece in pieces):,} tokens"
            for name, pieces in parts
        )


def split_pieces(pieces: Iterable[Piece]) -> Split:
    """About 80 % of the pieces to train, 10 % valid, 10 % held out.

    Args:
        pieces: any pieces with different names.

    Returns:
        The split; which part a piece falls into depends on its group's first name alone.
    """
    parts: tuple[list[Piece], ...] = ([], [], [])
    for group in same_music(pieces):
        fraction = _fraction_of(group[0].name)
        parts[(fraction >= 0.8) + (fraction >= 0.9)].extend(group)
    train, valid, held_out = (tuple(sorted(part, key=lambda piece: piece.name)) for part in parts)
    return Split(train, valid, held_out)


def split_literature(parts: dict[str, list[Piece]]) -> Split:
    """The literature's split: its valid is held out, and our valid is a part of its train.

    About a tenth of the groups of pieces with the same music, drawn by the name of their first.

    Args:
        parts: what `read_literature` returned.

    Returns:
        The split; its `train` and `valid` together are the literature's train.
    """
    train, valid = [], []
    for group in same_music(parts["train"]):
        (valid if _fraction_of(group[0].name) < 0.1 else train).extend(group)
    return Split(
        tuple(sorted(train, key=lambda piece: piece.name)),
        tuple(sorted(valid, key=lambda piece: piece.name)),
        tuple(parts["valid"]),
    )


def same_music(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """The pieces in groups of the same music, most of them alone.

    Args:
        pieces: any pieces with different names.

    Returns:
        Groups sorted by their first names, each sorted by name.
    """
    ordered = sorted(pieces, key=lambda piece: piece.name)
    progressions = [_progressions(piece) for piece in ordered]
    leader = list(range(len(ordered)))
    for later, one in enumerate(progressions):
        for earlier, other in enumerate(progressions[:later]):
            fewer = min(len(one), len(other))
            if fewer and len(one & other) >= OVERLAP * fewer:
                old, new = leader[later], leader[earlier]
                leader = [min(old, new) if first in (old, new) else first for first in leader]
    groups: dict[int, list[Piece]] = {}
    for first, piece in zip(leader, ordered, strict=True):
        groups.setdefault(first, []).append(piece)
    return list(groups.values())


def _progressions(piece: Piece) -> set[bytes]:
    """Runs of different chords on the beats, each run relative to its first bass note."""
    chords = piece.pitches[-piece.pickup % STEPS_PER_QUARTER :: STEPS_PER_QUARTER].astype(np.int64)
    if not len(chords):
        return set()
    new = np.append(True, (chords[1:] != chords[:-1]).any(axis=1))
    chords = chords[new & (chords != SILENCE).all(axis=1)]
    runs: Sequence[np.ndarray] = [
        chords[start : start + _CHORDS] for start in range(len(chords) - _CHORDS + 1)
    ]
    return {(run - run[0, -1]).tobytes() for run in runs}


def _fraction_of(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56
