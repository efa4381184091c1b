"""The split that performances were published with, as MAESTRO has it in a table beside them.

Hawthorne et al. 2019 split MAESTRO so that no composition is in two parts, and figures on it are
those of its own parts. Its table has a line for each performance, with the columns `split` (train,
validation or test) and `midi_filename` (the path in the folder) among others.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...files import read_whole
from ..score_lines import ScoreError
from .performance import Performance
from .split import PerformanceSplit

__all__ = ["PublishedSplit", "published_split", "split_as_published"]

_SPLIT, _FILE = "split", "midi_filename"
_PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class PublishedSplit:
    """The part of every file.

    Args:
        table: the name of the file that says it.
        parts: by path in the folder: `"train"`, `"validation"` or `"test"`.
    """

    table: str
    parts: Mapping[str, str]


def published_split(folder: str | Path) -> PublishedSplit | None:
    """What a table in the folder says of its performances; None where there is no such table.

    Args:
        folder: of the performances.

    Raises:
        ScoreError: if there are several such tables, or one cannot be read or contradicts itself.
    """
    found = [
        PublishedSplit(path.name, parts)
        for path in sorted(Path(folder).glob("*.csv"))
        if path.is_file()
        and not path.name.startswith(".")
        and (parts := _read_table(path)) is not None
    ]
    if len(found) > 1:
        names = " and ".join(one.table for one in found)
        raise ScoreError(f"{folder}: must have one table with a column {_SPLIT!r}, got {names}")
    return found[0] if found else None


def split_as_published(
    performances: Sequence[Performance], published: PublishedSplit
) -> PerformanceSplit:
    """The performances as they were published, those that the table does not name left out.

    Args:
        performances: named as their paths in the folder.
        published: the part of each.

    Raises:
        ValueError: if a part is empty.

    Warns:
        UserWarning: where some are left out.
    """
    by_part: dict[str, list[Performance]] = {part: [] for part in _PARTS}
    unknown = []
    for one in sorted(performances, key=lambda one: one.name):
        part = published.parts.get(one.name)
        (unknown if part is None else by_part[part]).append(one)
    if empty := [part for part, found in by_part.items() if not found]:
        raise ValueError(
            f"{published.table}: must name performances of train, validation and test that are "
            f"there, got none of {' and '.join(empty)}"
        )
    if unknown:
        warnings.warn(
            f"left out: {len(unknown):,} of {len(performances):,} performances, which "
            f"{published.table} does not name, such as {unknown[0].name}",
            stacklevel=2,
        )
    train, valid, held_out = (tuple(by_part[part]) for part in _PARTS)
    used = len(performances) - len(unknown)
    as_published = f"as {published.table} has it"
    if used < len(published.parts):
        as_published += f", {len(published.parts) - used:,} of its {len(published.parts):,} missing"
    if unknown:
        as_published += f", {len(unknown):,} that it does not name left out"
    return PerformanceSplit(train, valid, held_out, as_published)


def _read_table(path: Path) -> dict[str, str] | None:
    """The part of each file; None if it is no such table, whatever else it is."""
    try:
        content = read_whole(path)
    except OSError as error:
        raise ScoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    # Spreadsheets save tables with semicolons where commas are decimal points.
    header = content.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("latin-1")
    delimiter = ";" if header.count(";") > header.count(",") else ","
    columns = [column.strip().strip('"').strip() for column in header.split(delimiter)]
    if not {_SPLIT, _FILE} <= set(columns):
        return None
    try:
        text = content.decode("utf-8-sig")
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        next(rows)
        parts: dict[str, str] = {}
        for row in rows:
            if row:
                _add(parts, dict(zip(columns, row, strict=False)), f"{path}, line {rows.line_num}")
    except UnicodeDecodeError as error:
        raise ScoreError(
            f"{path}: must be UTF-8, got the byte 0x{content[error.start]:02x} at {error.start:,}"
        ) from error
    except csv.Error as error:
        raise ScoreError(f"{path}: must be comma-separated values: {error}") from error
    return parts


def _add(parts: dict[str, str], row: Mapping[str, str], where: str) -> None:
    file, part = (row.get(column, "").strip() for column in (_FILE, _SPLIT))
    if not file:
        raise ScoreError(f"{where}: must have a {_FILE}, got none")
    if part not in _PARTS:
        raise ScoreError(f"{where}: {_SPLIT} must be train, validation or test, got {part!r}")
    name = PurePosixPath(file.replace("\\", "/")).as_posix()
    if parts.setdefault(name, part) != part:
        raise ScoreError(f"{where}: {file} must be in one part, got {parts[name]} and {part}")
