"""Pieces in one `.npz` file: written whole or not at all, and rebuilt when it is broken."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..files import replacing
from .piece import Piece

__all__ = ["cache_path", "load_pieces", "save_pieces"]

_FIELDS = ("name", "pickup", "steps_per_bar", "fifths", "has_onsets")


def cache_path(kind: str, listing: Iterable[str]) -> Path | None:
    """Where to keep what was read from some files; None for a user without a home.

    Args:
        kind: of music, with which the file's name begins.
        listing: lines that change whenever the files do.
    """
    lines = "\n".join(listing).encode(errors="surrogateescape")
    digest = hashlib.blake2b(lines, digest_size=8).hexdigest()
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "relpos" / f"{kind}-{digest}.npz"


def save_pieces(path: Path, pieces: list[Piece]) -> None:
    """Write the pieces to one file; a folder that cannot be written to is no error.

    Args:
        path: the file, which only ever appears whole.
        pieces: what to write.
    """
    about = [{field: getattr(piece, field) for field in _FIELDS} for piece in pieces]
    try:
        with replacing(path) as partial:
            np.savez_compressed(
                partial,
                about=np.array(json.dumps(about)),
                steps=np.array([piece.steps for piece in pieces]),
                pitches=np.concatenate([piece.pitches for piece in pieces]),
                onsets=np.concatenate([piece.onsets for piece in pieces]),
            )
    except OSError:
        # Without a cache the next run reads the scores again, a few seconds.
        pass


def load_pieces(path: Path) -> list[Piece] | None:
    """The pieces that `save_pieces` wrote, or None where the file is missing or broken.

    Args:
        path: the file.

    Returns:
        The pieces in the order in which they were given.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            ends = np.cumsum(arrays["steps"])[:-1]
            grids = zip(
                json.loads(str(arrays["about"])),
                np.split(arrays["pitches"], ends),
                np.split(arrays["onsets"], ends),
                strict=True,
            )
            return [
                Piece(pitches=pitches, onsets=onsets, **about) for about, pitches, onsets in grids
            ]
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile, zlib.error):
        return None
