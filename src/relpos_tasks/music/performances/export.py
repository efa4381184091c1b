"""A performance as the two files that people open: MIDI and sound."""

from __future__ import annotations

from pathlib import Path

from ...files import check_writable, write_together
from ..stems import checked_stem, files_of
from .midi import midi_of
from .performance import Performance
from .sound import wav_of

__all__ = ["check_performance", "performance_contents", "performance_stem", "write_performance"]

_ENDINGS = (".mid", ".wav")


def performance_stem(path: Path) -> Path:
    """The path that `write_performance` is to be given: without an ending, and possible to write.

    Args:
        path: as the user wrote it; one of the endings is left out.

    Raises:
        ValueError: if it is no file's name, or something else is in its place.
    """
    return checked_stem(path, example="performance", endings=_ENDINGS)


def check_performance(stem: Path) -> None:
    """Raise if `write_performance` could not write a file, before there is a performance.

    Args:
        stem: the files' path without an ending.

    Raises:
        ValueError: that names the file and what is in the way.
    """
    for target in files_of(stem, _ENDINGS):
        check_writable(target)


def performance_contents(stem: Path, performance: Performance) -> dict[Path, bytes]:
    """The content of each file of a performance: MIDI, then sound.

    Args:
        stem: the files' path without an ending.
        performance: any.
    """
    contents = midi_of(performance), wav_of(performance)
    return dict(zip(files_of(stem, _ENDINGS), contents, strict=True))


def write_performance(stem: Path, performance: Performance) -> None:
    """Write a performance as `.mid` and `.wav`: both, or none.

    Args:
        stem: the files' path without an ending.
        performance: what to write.
    """
    write_together(performance_contents(stem, performance))
