"""A chorale as the three files that people open: score, MIDI and sound."""

from __future__ import annotations

from pathlib import Path

from ..files import check_writable, write_together
from .piece import Piece
from .score import musicxml_of
from .sound import midi_of, wav_of
from .stems import PIECE_ENDINGS, checked_stem, files_of

__all__ = ["check_chorale", "chorale_contents", "chorale_stem", "write_chorale"]


def chorale_stem(path: Path) -> Path:
    """The path that `write_chorale` is to be given: without an ending, and possible to write.

    Args:
        path: as the user wrote it; one of the three endings is left out.

    Raises:
        ValueError: if it is no file's name, or something else is in its place.

    >>> chorale_stem(Path("new/tune.mid")).name
    'tune'
    """
    return checked_stem(path, example="chorale")


def check_chorale(stem: Path) -> None:
    """Raise if `write_chorale` could not write a file, before there is a chorale.

    Args:
        stem: the files' path without an ending.

    Raises:
        ValueError: that names the file and what is in the way.
    """
    for target in files_of(stem, PIECE_ENDINGS):
        check_writable(target)


def chorale_contents(stem: Path, piece: Piece) -> dict[Path, bytes]:
    """The content of each file of a piece: score, MIDI, then sound.

    Args:
        stem: the files' path without an ending.
        piece: any.
    """
    contents = musicxml_of(piece).encode(), midi_of(piece), wav_of(piece)
    return dict(zip(files_of(stem, PIECE_ENDINGS), contents, strict=True))


def write_chorale(stem: Path, piece: Piece) -> None:
    """Write a piece as `.musicxml`, `.mid` and `.wav`: all three, or none.

    Args:
        stem: the files' path without an ending.
        piece: what to write.
    """
    write_together(chorale_contents(stem, piece))
