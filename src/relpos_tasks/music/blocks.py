"""What the report on chorales adds to text, tables and figures: sound and an engraved score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..report.blocks import DownloadBlock

__all__ = ["PlayerBlock", "ScoreBlock"]


@dataclass(frozen=True)
class PlayerBlock:
    """A player for a sound, and beside it a file to download.

    Args:
        wav: the sound.
        download: the file.
    """

    wav: bytes
    download: DownloadBlock
    template: ClassVar[str] = "music/player.html"


@dataclass(frozen=True)
class ScoreBlock:
    """An engraved score, once for wide and once for narrow screens.

    Args:
        wide: pages of SVG.
        narrow: pages of SVG with fewer bars in a line.
    """

    wide: Sequence[str]
    narrow: Sequence[str]
    template: ClassVar[str] = "music/score.html"
