"""A chorale on a page: its sound, its MIDI file and its score."""

from __future__ import annotations

from ..report.blocks import Block, DownloadBlock
from .blocks import PlayerBlock, ScoreBlock
from .export import ChoraleFiles
from .score import svg_pages

__all__ = ["chorale_blocks"]

# As high as verovio lets a page be.
_ONE_PAGE = 60_000


def chorale_blocks(files: ChoraleFiles, *, name: str) -> list[Block]:
    """A player with a button that saves the MIDI file, and the engraved score.

    Their style is that of `music/report.html`.

    Args:
        files: of the chorale.
        name: of the MIDI file.

    Raises:
        ValueError: if verovio cannot read the score.
    """
    download = DownloadBlock("Download MIDI", name, files.midi, "audio/midi")
    score = ScoreBlock(
        svg_pages(files.musicxml, width=2400, height=_ONE_PAGE),
        svg_pages(files.musicxml, width=1000, height=_ONE_PAGE),
    )
    return [PlayerBlock(files.wav, download), score]
