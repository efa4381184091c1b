"""The pieces that a run is about: music21's chorales, or the literature's grid from a file."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16
from numpy import ndarray

from .augment import voice_ranges
from .corpus import chorales
from .literature import read_literature
from .score_lines import ScoreError
from .split import Split, split_literature, split_pieces
from .tokens import Vocabulary, vocabulary_of

__all__ = ["EMBEDDED", "Source", "read_source"]

EMBEDDED = "chorales"


@dataclass(frozen=True, eq=False)
class Source:
    """Pieces in three parts, their tokens, and each voice's range in training.

    Args:
        name: `"chorales"`, or the file's name.
        digest: of the pieces, so that a run cannot go on with others.
        split: the pieces.
        vocabulary: made from the training pieces.
        ranges: lowest and highest pitch of each voice.
    """

    name: str
    digest: str
    split: Split
    vocabulary: Vocabulary
    ranges: Int16[ndarray, "4 2"]

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about its data."""
        return {
            "name": self.name,
            "digest": self.digest,
            "split": str(self.split),
            "onsets": self.vocabulary.onsets,
            "vocabulary": asdict(self.vocabulary),
            "ranges": self.ranges.tolist(),
        }


def read_source(path: str | Path | None = None, *, progress: bool = False) -> Source:
    """The pieces to train and to measure on.

    Args:
        path: the literature's grid (`Jsb16thSeparated.json`, plain or gzipped), pitches only; None
            takes the chorales inside music21, with onsets.
        progress: True shows a progress bar while scores are read.

    Raises:
        ScoreError: if the file cannot be used, a part of the split is empty, or a piece to measure
            on leaves the vocabulary.
    """
    if path is None:
        where, name, split = "music21", EMBEDDED, split_pieces(chorales(progress=progress))
    else:
        where, name, split = path, Path(path).name, split_literature(read_literature(path))
    try:
        vocabulary, ranges = _described(split)
    except ValueError as error:
        raise ScoreError(f"{where}: {error}") from error
    digest = hashlib.blake2b(digest_size=8)
    for part in (split.train, split.valid, split.held_out):
        for piece in part:
            digest.update(piece.name.encode())
            digest.update(np.ascontiguousarray(piece.pitches).tobytes())
            digest.update(np.ascontiguousarray(piece.onsets).tobytes())
    return Source(name, digest.hexdigest(), split, vocabulary, ranges)


def _described(split: Split) -> tuple[Vocabulary, Int16[ndarray, "4 2"]]:
    """The training pieces' vocabulary and ranges, if all parts can be trained and measured on."""
    if not (split.train and split.valid and split.held_out):
        raise ValueError(f"every part of the split must have a piece, got {split}")
    vocabulary = vocabulary_of(split.train)
    for piece in (*split.valid, *split.held_out):
        vocabulary.encode(piece)
    return vocabulary, voice_ranges(split.train)
