"""Where the files of a new piece go, which differ in their endings alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..files import check_writable

__all__ = ["PIECE_ENDINGS", "checked_stem", "files_of"]

# Of what is written for a piece of either kind: performances have no score.
PIECE_ENDINGS = (".musicxml", ".mid", ".wav")


def checked_stem(path: Path, *, example: str, endings: Sequence[str] = PIECE_ENDINGS) -> Path:
    """The files' path without an ending, if they can be written.

    Args:
        path: as the user wrote it; one of the endings is left out.
        example: of a name, for the message.
        endings: of the files.

    Raises:
        ValueError: if it is no file's name, or something else is in its place.

    >>> checked_stem(Path("new/tune.mid"), example="chorale").name
    'tune'
    """
    if path.name in ("", ".."):
        raise ValueError(f"{path}: must be the files' name without ending, such as {example}")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, not a file's name; try {path / example}")
    if path.suffix in endings:
        path = path.with_suffix("")
    for target in files_of(path, endings):
        check_writable(target)
    return path


def files_of(stem: Path, endings: Sequence[str]) -> list[Path]:
    """The files of a piece.

    Args:
        stem: their path without an ending.
        endings: of the files.
    """
    return [stem.with_name(stem.name + ending) for ending in endings]
