"""A performance as the two files that people open: MIDI and sound."""

from __future__ import annotations

from pathlib import Path

from ...files import write_together
from .midi import midi_of
from .performance import Performance
from .sound import wav_of

__all__ = ["ENDINGS", "targets", "write_performance"]

ENDINGS = (".mid", ".wav")


def write_performance(stem: Path, performance: Performance) -> tuple[bytes, bytes]:
    """Write a performance as `.mid` and `.wav`: both, or none.

    Args:
        stem: the files' path without an ending.
        performance: what to write.

    Returns:
        The contents in this order.
    """
    contents = midi_of(performance), wav_of(performance)
    write_together(dict(zip(targets(stem), contents, strict=True)))
    return contents


def targets(stem: Path) -> list[Path]:
    """The files that `write_performance` writes.

    Args:
        stem: their path without an ending.
    """
    return [stem.with_name(stem.name + ending) for ending in ENDINGS]
