"""The four-part Bach chorales that lie inside the installed music21 package, read in place.

365 of the MusicXML files there have exactly four parts. Chorales with instruments, double choirs
and the Humdrum files (three chorales that are there as MusicXML too) are left out.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.progress import track

from .cache import cache_path, load_pieces, save_pieces
from .musicxml import read_lines
from .piece import VOICES, Piece
from .score_lines import ScoreError

__all__ = ["chorale_files", "chorales"]

# Changes whenever the reader would make another grid from the same files.
_FORMAT = 2


def chorales(*, cache: bool = True, progress: bool = False) -> list[Piece]:
    """The four-part chorales of Bach, sorted by name.

    The first call reads the scores (a few seconds) and writes one file below `$XDG_CACHE_HOME`
    or `~/.cache`; later calls read that file.

    Args:
        cache: False neither reads nor writes the cache.
        progress: True shows a progress bar on stderr while scores are read.

    Returns:
        Pieces with onsets, named as their files, e.g. `"bwv269"`.

    Raises:
        ScoreError: if music21 is not installed or holds no four-part chorale.

    Warns:
        UserWarning: naming each score that could not be read.
    """
    files = chorale_files()
    path = _cache_path(files) if cache else None
    if path is not None and (pieces := load_pieces(path)) is not None:
        return pieces
    steps: Iterable[Path] = files
    if progress:
        steps = track(files, "Reading the chorales", console=Console(stderr=True))
    read, whole = [], True
    for file in steps:
        try:
            lines = read_lines(file)
        except ScoreError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
            whole = False
            continue
        if lines.pitches.shape[1] == len(VOICES):
            read.append(lines.piece(file.stem))
    if not read:
        raise ScoreError(f"{files[0].parent}: holds no four-part chorale")
    pieces = sorted(read, key=lambda piece: piece.name)
    if path is not None and whole:
        save_pieces(path, pieces)
    return pieces


def chorale_files() -> list[Path]:
    """The MusicXML files in music21's folder of Bach, sorted; music21 itself is not imported.

    Raises:
        ScoreError: if music21 is not installed, or without its corpus.
    """
    spec = importlib.util.find_spec("music21")
    if spec is None or not spec.submodule_search_locations:
        raise ScoreError(
            "music21: is not installed, and holds the chorales; run `pip install relpos[music]`"
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "corpus" / "bach"
    files = [file for ending in ("mxl", "xml", "musicxml") for file in folder.glob(f"*.{ending}")]
    if not files:
        raise ScoreError(f"{folder}: holds no MusicXML file; install music21 with its corpus")
    return sorted(files)


def _cache_path(files: list[Path]) -> Path | None:
    """Where the pieces of these files are kept; None for a user without a home."""
    listing = [f"format {_FORMAT}", *(f"{file.name} {file.stat().st_size}" for file in files)]
    return cache_path("chorales", listing)
