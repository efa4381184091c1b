"""A chorale as the three files that people open: score, MIDI and sound."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..files import check_writable, write_together
from .piece import Piece
from .score import musicxml_of
from .sound import midi_of, wav_of
from .stems import PIECE_ENDINGS, checked_stem, files_of

__all__ = ["ChoraleFiles", "check_chorale", "chorale_files", "chorale_stem", "write_chorale"]


@dataclass(frozen=True)
class ChoraleFiles:
    """What stands in the files of a chorale.

    Args:
        musicxml: the score.
        midi: the notes.
        wav: the sound.
    """

    musicxml: str
    midi: bytes
    wav: bytes

    def at(self, stem: Path) -> dict[Path, bytes]:
        """The content of each file.

        Args:
            stem: the files' path without an ending.
        """
        contents = self.musicxml.encode(), self.midi, self.wav
        return dict(zip(files_of(stem, PIECE_ENDINGS), contents, strict=True))


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


def chorale_files(piece: Piece) -> ChoraleFiles:
    """A piece as score, MIDI and sound.

    Args:
        piece: any.
    """
    return ChoraleFiles(musicxml_of(piece), midi_of(piece), wav_of(piece))


def write_chorale(stem: Path, piece: Piece) -> None:
    """Write a piece as `.musicxml`, `.mid` and `.wav`: all three, or none.

    Args:
        stem: the files' path without an ending.
        piece: what to write.
    """
    write_together(chorale_files(piece).at(stem))
