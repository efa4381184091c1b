"""All MIDI files in a folder, read once and kept as notes."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from ...files import replacing
from ..cache import cache_path
from ..score_lines import ScoreError
from .midi import read_performance
from .performance import Performance

__all__ = ["midi_files", "read_folder"]

_ENDINGS = (".mid", ".midi")
# Changes whenever the reader would make other notes from the same files.
_FORMAT = 3
# So many files that cannot be used are named, each in a line; the others are counted.
_NAMED = 8
_COLUMNS = {"starts": np.int32, "ends": np.int32, "pitches": np.uint8, "velocities": np.uint8}


def read_folder(
    folder: str | Path, *, cache: bool = True, progress: bool = False
) -> list[Performance]:
    """The performances in a folder and the folders in it, sorted by name.

    The notes are kept in one file below `$XDG_CACHE_HOME` or `~/.cache`, which is read in place of
    the MIDI files as long as none of them is added, removed or changed.

    Args:
        folder: of `.mid` and `.midi` files, in any case; hidden ones are left out.
        cache: False neither reads nor writes that file.
        progress: True shows a progress bar on stderr while files are read.

    Returns:
        A performance for each file that could be read, named as its path in the folder.

    Raises:
        ScoreError: if the folder cannot be read, or holds no MIDI file that can be used.

    Warns:
        UserWarning: naming each file that could not be used, or counting them where they are many.
    """
    folder = Path(folder)
    files = midi_files(folder)
    path = _cache_path(folder, files) if cache else None
    kept = None if path is None else _load(path)
    if kept is None:
        performances, left_out, lasting = _read(folder, files, progress=progress)
        if path is not None and lasting:
            _save(path, performances, left_out)
    else:
        performances, left_out = kept
    for reason in left_out[:_NAMED]:
        warnings.warn(f"left out: {reason}", stacklevel=2)
    if len(left_out) > _NAMED:
        more = len(left_out) - _NAMED
        warnings.warn(f"left out: {more:,} more of {len(files):,} files", stacklevel=2)
    if not performances:
        raise ScoreError(f"{folder}: holds no MIDI file that can be used, got {len(files):,} files")
    return performances


def midi_files(folder: str | Path) -> list[Path]:
    """The MIDI files in a folder and the folders in it, sorted by path; hidden ones are left out.

    Args:
        folder: links to other folders in it are not followed.

    Raises:
        ScoreError: if the folder cannot be read, or there is no such file in it.
    """

    def refuse(error: OSError) -> None:
        raise ScoreError(f"{error.filename}: cannot be read: {error.strerror or error}")

    files = []
    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [
            Path(where) / name
            for name in names
            if name.lower().endswith(_ENDINGS) and not name.startswith(".")
        ]
    if not files:
        raise ScoreError(f"{folder}: must hold MIDI files (.mid or .midi), got none")
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())


def _read(
    folder: Path, files: list[Path], *, progress: bool
) -> tuple[list[Performance], list[str], bool]:
    """The performances, why files were left out, and whether it will be so the next time."""
    steps: Iterable[Path] = files
    if progress:
        steps = track(files, "Reading the MIDI files", console=Console(stderr=True))
    performances, left_out, lasting = [], [], True
    for file in steps:
        try:
            name = file.relative_to(folder).as_posix()
            performances.append(read_performance(file, name=name))
        except ScoreError as error:
            left_out.append(str(error))
            # A file that could not be opened may be, once somebody has seen to it.
            lasting &= not isinstance(error.__cause__, OSError)
    return performances, left_out, lasting


def _cache_path(folder: Path, files: list[Path]) -> Path | None:
    listing = [f"format {_FORMAT}", str(folder.resolve()), str(folder)]
    for file in files:
        try:
            about = file.stat()
        except OSError:
            continue
        listing.append(f"{file} {about.st_size} {about.st_mtime_ns}")
    return cache_path("performances", listing)


def _save(path: Path, performances: list[Performance], left_out: list[str]) -> None:
    """Write the notes to one file; a folder that cannot be written to is no error."""
    about = {"names": [one.name for one in performances], "left_out": left_out}
    empty = [np.zeros(0, dtype) for dtype in _COLUMNS.values()]
    columns = {
        name: np.concatenate([none, *(getattr(one, name) for one in performances)])
        for none, name in zip(empty, _COLUMNS, strict=True)
    }
    try:
        with replacing(path) as partial:
            np.savez_compressed(
                partial,
                about=np.array(json.dumps(about)),
                notes=np.array([one.notes for one in performances], np.int64),
                **columns,  # type: ignore[arg-type]
            )
    except OSError:
        # Without it the next run reads the files again.
        pass


def _load(path: Path) -> tuple[list[Performance], list[str]] | None:
    """What `_save` wrote, or None where the file is missing or broken."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            ends = np.cumsum(arrays["notes"])[:-1]
            parts: Iterator[tuple[np.ndarray, ...]] = zip(
                *(np.split(arrays[name], ends) for name in _COLUMNS), strict=True
            )
            performances = [
                Performance(name, *columns)
                for name, columns in zip(about["names"], parts, strict=True)
            ]
            return performances, [str(reason) for reason in about["left_out"]]
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile, zlib.error):
        return None
