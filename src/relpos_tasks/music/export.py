"""A chorale as the three files that people open: score, MIDI and sound."""

from __future__ import annotations

from pathlib import Path

from ..files import check_writable, write_together
from .piece import Piece
from .score import musicxml_of
from .sound import midi_of, wav_of

__all__ = ["check_chorale", "chorale_stem", "write_chorale"]

_ENDINGS = (".musicxml", ".mid", ".wav")


def chorale_stem(path: Path) -> Path:
    """The path that `write_chorale` is to be given: without an ending, and possible to write.

    Args:
        path: as the user wrote it; one of the three endings is left out.

    Raises:
        ValueError: if it is no file's name, or something else is in its place.

    >>> chorale_stem(Path("new/tune.mid")).name
    'tune'
    """
    if path.name in ("", ".."):
        raise ValueError(f"{path}: must be the files' name without ending, such as chorale")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, not a file's name; try {path / 'chorale'}")
    if path.suffix in _ENDINGS:
        path = path.with_suffix("")
    check_chorale(path)
    return path


def check_chorale(stem: Path) -> None:
    """Raise if `write_chorale` could not write a file, before there is a chorale.

    Args:
        stem: the files' path without an ending.

    Raises:
        ValueError: that names the file and what is in the way.
    """
    for target in _targets(stem):
        check_writable(target)


def write_chorale(stem: Path, piece: Piece) -> tuple[str, bytes, bytes]:
    """Write a piece as `.musicxml`, `.mid` and `.wav`: all three, or none.

    Args:
        stem: the files' path without an ending.
        piece: what to write.

    Returns:
        The contents in this order.
    """
    musicxml, midi, wav = musicxml_of(piece), midi_of(piece), wav_of(piece)
    contents = (musicxml.encode(), midi, wav)
    write_together(dict(zip(_targets(stem), contents, strict=True)))
    return musicxml, midi, wav


def _targets(stem: Path) -> list[Path]:
    return [stem.with_name(stem.name + ending) for ending in _ENDINGS]
