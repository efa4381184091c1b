"""The chorale grid that the literature reports on, read from a user's file.

The file is `Jsb16thSeparated.json` of the public repository czhuang/JSB-Chorales-dataset, plain
or gzipped: for each part of the split a list of pieces, each a list of sixteenths, each the MIDI
pitches of S A T B, with -1 for silence. It marks neither onsets nor bars.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..packed import read_unpacked
from .piece import VOICES, Piece
from .score_lines import ScoreError

__all__ = ["read_literature"]


def read_literature(path: str | Path) -> dict[str, list[Piece]]:
    """The pieces of a `Jsb16thSeparated.json`, plain or gzipped, by part of the split.

    Args:
        path: the file; its first bytes tell whether it is gzipped.

    Returns:
        `{"train": pieces, "valid": pieces}`, pitches only, named `"train-000"` and so on. A part
        `"test"` is there if the file has one.

    Raises:
        ScoreError: if the file is missing or is not such a grid.
    """
    content = _read_json(path)
    if not isinstance(content, dict):
        raise ScoreError(
            f"{path}: must hold an object with lists 'train' and 'valid', "
            f"got a {type(content).__name__}"
        )
    for part in ("train", "valid"):
        if not isinstance(content.get(part), list) or not content[part]:
            raise ScoreError(
                f"{path}: must hold a list {part!r} of pieces, got the keys {list(content)[:9]}"
            )
    return {
        part: [
            _piece(grid, f"{part}-{n:03}", f"{path}: {part}[{n}]") for n, grid in enumerate(grids)
        ]
        for part in ("train", "valid", "test")
        if isinstance(grids := content.get(part), list)
    }


def _read_json(path: str | Path) -> Any:
    try:
        raw = read_unpacked(path)
    except OSError as error:
        raise ScoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    if raw.startswith(b"MThd"):
        raise ScoreError(f"{path}: must be a folder of MIDI files, got one of them")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ScoreError(
            f"{path}: must be a folder of MIDI files, or JSON as Jsb16thSeparated.json is, got "
            f"neither: {error}"
        ) from error


def _piece(grid: Any, name: str, where: str) -> Piece:
    try:
        pitches = np.array(grid, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        raise ScoreError(f"{where}: must be a list of [S, A, T, B], got {str(grid)[:60]}") from None
    if pitches.ndim != 2 or pitches.shape[1] != len(VOICES):
        raise ScoreError(f"{where}: must be (steps, 4) pitches, got {pitches.shape}")
    wrong = (pitches != np.round(pitches)) | (pitches < -1) | (pitches > 127)
    if wrong.any():
        step, voice = np.argwhere(wrong)[0]
        raise ScoreError(
            f"{where}: pitches must be whole MIDI pitches 0..127 or -1, "
            f"got {pitches[step, voice]:g} in step {step} of the {VOICES[voice]}"
        )
    unknown = np.zeros(pitches.shape, np.bool_)
    return Piece(name, pitches.astype(np.int16), unknown, has_onsets=False)
