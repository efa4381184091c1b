"""A chorale on a page: its sound, its MIDI file and its score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..report.blocks import Block, DownloadBlock
from .blocks import PlayerBlock, ScoreBlock
from .score import svg_pages

__all__ = ["chorale_blocks"]

# As high as verovio lets a page be.
_ONE_PAGE = 60_000


def chorale_blocks(files: Mapping[Path, bytes]) -> list[Block]:
    """A player with a button that saves the MIDI file, and the engraved score.

    Their style is that of `music/report.html`.

    Args:
        files: of the chorale, as `chorale_contents` gives them.

    Raises:
        ValueError: if verovio cannot read the score.
    """
    (_, score), (path, midi), (_, wav) = files.items()
    musicxml = score.decode()
    download = DownloadBlock("Download MIDI", path.name, midi, "audio/midi")
    engraved = ScoreBlock(
        svg_pages(musicxml, width=2400, height=_ONE_PAGE),
        svg_pages(musicxml, width=1000, height=_ONE_PAGE, title=False),
    )
    return [PlayerBlock(wav, download), engraved]
