"""A performance as the two files that people open: MIDI and sound."""

from __future__ import annotations

from pathlib import Path

from ...files import write_together
from .midi import midi_of
from .performance import Performance
from .sound import wav_of

__all__ = ["ENDINGS", "write_performance"]

ENDINGS = (".mid", ".wav")


def write_performance(stem: Path, performance: Performance) -> tuple[bytes, bytes]:
    """Write a performance as `.mid` and `.wav`: both, or none.

    Args:
        stem: the files' path without an ending.
        performance: what to write.

    Returns:
        The contents in this order.
    """
    midi, wav = midi_of(performance), wav_of(performance)
    write_together(
        {stem.with_name(stem.name + e): c for e, c in zip(ENDINGS, (midi, wav), strict=True)}
    )
    return midi, wav
