"""The music that a run is about: music21's chorales, the literature's grid, or a folder of MIDI."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int16, Int64
from numpy import ndarray

from .augment import voice_ranges
from .baselines import counting_baselines
from .corpus import chorales
from .kinds import CHORALES
from .literature import read_literature
from .score_lines import ScoreError
from .settings import MusicSettings
from .split import Split, split_literature, split_pieces
from .tokens import Vocabulary, vocabulary_of

__all__ = ["EMBEDDED", "MusicSource", "Source", "read_source"]

EMBEDDED = "chorales"


@runtime_checkable
class MusicSource(Protocol):
    """Music of one kind, split, with all that training and measuring ask of it."""

    @property
    def name(self) -> str:
        """Of the file or the folder, or `"chorales"`."""
        ...

    @property
    def digest(self) -> str:
        """Of the music, so that a run cannot go on with other music."""
        ...

    @property
    def split(self) -> Any:
        """The works in three parts, as a line by `str`."""
        ...

    @property
    def vocabulary(self) -> Any:
        """The tokens: their `size`, and how a work is encoded."""
        ...

    def about(self) -> dict[str, Any]:
        """What a checkpoint says about its data."""
        ...

    def data(self, settings: Any) -> Any:
        """Lightning's data module: the batches to train and to validate on."""
        ...

    def held_out(self, most: int | None, *, window: int) -> list[Int64[ndarray, "_"]]:
        """The sequences to measure on: of at most so many tokens, and four windows of each."""
        ...

    def valid(self, most: int | None, *, window: int) -> list[Int64[ndarray, "_"]]:
        """The sequences to choose settings on, likewise."""
        ...

    def counting(self, most: int | None, *, window: int) -> dict[str, float]:
        """Nats per token of each counting baseline on the held-out sequences."""
        ...


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
            "kind": CHORALES,
            "name": self.name,
            "digest": self.digest,
            "split": str(self.split),
            "onsets": self.vocabulary.onsets,
            "vocabulary": asdict(self.vocabulary),
            "ranges": self.ranges.tolist(),
        }

    def data(self, settings: MusicSettings) -> Any:
        """Lightning's data module: the batches to train and to validate on.

        Args:
            settings: sizes and budget.
        """
        # Composing does without Lightning.
        from .data import ChoraleData  # noqa: PLC0415

        training = settings.training
        return ChoraleData(
            self.split,
            self.vocabulary,
            window=settings.window,
            batch=training.batch,
            steps=training.steps,
            seed=training.seed,
        )

    def held_out(
        self, most: int | None = None, *, window: int | None = None
    ) -> list[Int64[ndarray, "_"]]:
        """The sequences to measure on: always all of them, which are few.

        Args:
            most: not used.
            window: not used.
        """
        return [self.vocabulary.encode(piece) for piece in self.split.held_out]

    def valid(
        self, most: int | None = None, *, window: int | None = None
    ) -> list[Int64[ndarray, "_"]]:
        """The sequences to choose settings on: always all of them.

        Args:
            most: not used.
            window: not used.
        """
        return [self.vocabulary.encode(piece) for piece in self.split.valid]

    def counting(self, most: int | None = None, *, window: int | None = None) -> dict[str, float]:
        """Nats per token of each counting baseline on the held-out sequences.

        Args:
            most: not used.
            window: not used.
        """
        split = self.split
        return counting_baselines(split.train, split.held_out, vocabulary=self.vocabulary)


def read_source(
    path: str | Path | None = None, *, train_on_valid: bool = False, progress: bool = False
) -> MusicSource:
    """The music to train and to measure on.

    Args:
        path: a folder of MIDI files, or the literature's grid of chorales
            (`Jsb16thSeparated.json`, plain or gzipped), pitches only; None takes the chorales
            inside music21, with onsets.
        train_on_valid: whether the validation pieces are among those to train on, too.
        progress: True shows a progress bar while scores or MIDI files are read.

    Raises:
        ScoreError: if the file or folder cannot be used, a part of the split is empty, or a piece
            to measure on leaves the vocabulary.
    """
    if path is not None and Path(path).is_dir():
        # It needs symusic, which chorales do without.
        from .performances.source import read_performances  # noqa: PLC0415

        return read_performances(path, train_on_valid=train_on_valid, progress=progress)
    return _read_chorales(path, train_on_valid=train_on_valid, progress=progress)


def _read_chorales(path: str | Path | None, *, train_on_valid: bool, progress: bool) -> Source:
    if path is None:
        where, name, split = "music21", EMBEDDED, split_pieces(chorales(progress=progress))
    else:
        where, name, split = path, Path(path).name, split_literature(read_literature(path))
    digest = _digest_of(split)
    if train_on_valid:
        split = replace(split, train=(*split.train, *split.valid))
    try:
        vocabulary, ranges = _described(split)
    except ValueError as error:
        raise ScoreError(f"{where}: {error}") from error
    return Source(name, digest, split, vocabulary, ranges)


def _digest_of(split: Split) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in (split.train, split.valid, split.held_out):
        for piece in part:
            digest.update(piece.name.encode())
            digest.update(np.ascontiguousarray(piece.pitches).tobytes())
            digest.update(np.ascontiguousarray(piece.onsets).tobytes())
    return digest.hexdigest()


def _described(split: Split) -> tuple[Vocabulary, Int16[ndarray, "4 2"]]:
    """The training pieces' vocabulary and ranges, if all parts can be trained and measured on."""
    if not (split.train and split.valid and split.held_out):
        raise ValueError(f"every part of the split must have a piece, got {split}")
    vocabulary = vocabulary_of(split.train)
    for piece in (*split.valid, *split.held_out):
        vocabulary.encode(piece)
    return vocabulary, voice_ranges(split.train)
