"""A chorale as the three files that people open: score, MIDI and sound."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ..files import replacing
from .piece import Piece
from .score import musicxml_of
from .sound import midi_of, wav_of

__all__ = ["chorale_stem", "write_chorale"]

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
    # What is missing is made, and needs a folder to be made in.
    ground = next((parent for parent in path.parents if parent.exists()), path.parent)
    if not ground.is_dir():
        raise ValueError(f"{path}: cannot be written, {ground} is not a folder")
    for target in _targets(path):
        if target.is_dir():
            raise ValueError(f"{target}: cannot be written, there is a folder of this name")
    return path


def write_chorale(stem: Path, piece: Piece) -> tuple[str, bytes, bytes]:
    """Write a piece as `.musicxml`, `.mid` and `.wav`: all three, or none.

    Args:
        stem: the files' path without an ending.
        piece: what to write.

    Returns:
        The contents in this order.
    """
    musicxml, midi, wav = musicxml_of(piece), midi_of(piece), wav_of(piece)
    with ExitStack() as files:
        for path, content in zip(_targets(stem), (musicxml.encode(), midi, wav), strict=True):
            files.enter_context(replacing(path)).write_bytes(content)
    return musicxml, midi, wav


def _targets(stem: Path) -> list[Path]:
    return [stem.with_name(stem.name + ending) for ending in _ENDINGS]
