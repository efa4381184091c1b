"""Parallel text from the user's own files: a folder with a file per language, or a file of pairs.

What is done with what such files may hold:

- **A folder** has `train.en`, `train.de`, `val.en`, `val.de` (Multi30k's names), plain or gzipped;
  `valid` and `dev` are other names for `val`, and there may be `test` or `test_2016_flickr` too, of
  which the first by name is taken. Line n of one language translates line n of the other.
- **A file of pairs** has on each line a sentence, a tab and its translation; what follows after
  another tab is not read. It may be gzipped, or the one file of a zip archive that is not about the
  others (`deu-eng.zip` of manythings.org). Lines that begin with a sentence's number, as
  tatoeba.org itself exports them (number, sentence, number, translation), are understood.
- **Text** is UTF-8, brought to Unicode's form NFC, without white space at the ends of a sentence.
- **Empty lines**: a pair of which one sentence, or both, are empty is left out and counted. (In a
  file of pairs a line without anything is no pair.)
"""

from __future__ import annotations

import io
import unicodedata
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..packed import BROKEN_ZIP, read_member, read_unpacked
from .languages import choose_languages, folder_languages, is_same_language, languages_in_name
from .pairs import Pair

__all__ = ["WHERE_TEXT_IS", "TextError", "Texts", "check_path", "read_lines", "read_texts"]

WHERE_TEXT_IS = (
    "a folder with train.en.gz, train.de.gz, val.en.gz and val.de.gz, as data/task1/raw of "
    "github.com/multi30k/dataset has them, or a file of pairs such as deu-eng.zip from "
    "www.manythings.org/anki"
)


class TextError(ValueError):
    """A file of text cannot be read or used; the message names the file and what is wrong."""


@dataclass(frozen=True, eq=False)
class Texts:
    """The pairs of a folder or file.

    Args:
        name: of the folder or file.
        languages: translated from, and to.
        train: all pairs but those of other parts.
        valid: pairs that the folder sets aside to watch training; None if there are none.
        held_out: pairs that it sets aside to measure on; None if there are none.
        empty: how many pairs were left out since a sentence was empty.
    """

    name: str
    languages: tuple[str, str]
    train: tuple[Pair, ...]
    valid: tuple[Pair, ...] | None = None
    held_out: tuple[Pair, ...] | None = None
    empty: int = 0


def read_texts(
    path: str | Path | None, *, source: str | None = None, target: str | None = None
) -> Texts:
    """The pairs of a folder or a file.

    A folder's `val` is held out if it has no `test`, since it is then all that was never trained
    on; with a `test`, that is held out and `val` is there to watch the training.

    Args:
        path: of the folder or file; None is refused with the words that say where text is.
        source: the language to translate from, such as `"en"`; None finds it.
        target: the language to translate to.

    Raises:
        TextError: if the text is missing, broken, or not of two languages.
    """
    path = check_path(path)
    try:
        return (_read_folder if path.is_dir() else _read_file)(path, source, target)
    except OSError as error:
        # It may be a file in the folder.
        where = error.filename or path
        raise TextError(f"{where}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise error if isinstance(error, TextError) else TextError(f"{path}: {error}") from error


def check_path(path: str | Path | None) -> Path:
    """The path, if something is there.

    Args:
        path: of a folder or file; None is refused with the words that say where text is.

    Raises:
        TextError: if nothing is there.
    """
    if path is None:
        raise TextError(
            f"--data: must name parallel text, which no package carries: {WHERE_TEXT_IS}; "
            "or give --chorales, which needs none"
        )
    path = Path(path)
    if not path.exists():
        raise TextError(f"{path}: no such file or folder; must be {WHERE_TEXT_IS}")
    return path


def read_lines(raw: bytes, where: str) -> list[str]:
    r"""The lines of a file in Unicode's form NFC, as they are otherwise.

    Args:
        raw: the file's bytes.
        where: the file, for the message.

    Raises:
        TextError: if it is not UTF-8, or has nothing but white space.

    >>> read_lines("Ein Mann\n\n schläft.\n".encode(), "a.de")
    ['Ein Mann', '', ' schläft.']
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise TextError(
            f"{where}: line {line} must be UTF-8, got the byte 0x{raw[error.start]:02x}"
        ) from error
    if not text.strip():
        raise TextError(f"{where}: must hold sentences, got an empty file")
    # Not `splitlines`, which parts lines at characters that a sentence may hold.
    lines = text.removesuffix("\n").split("\n")
    return [unicodedata.normalize("NFC", line) for line in lines]


def _read_folder(folder: Path, source: str | None, target: str | None) -> Texts:
    files, found = folder_languages(folder)
    languages = choose_languages(found, source, target)
    parts, empty = {}, 0
    for part in ("train", "val", "test"):
        if part != "train" and not set(languages) & files.get(part, {}).keys():
            continue
        paths = _both(folder, part, files[part], languages)
        columns = [read_lines(read_unpacked(path), str(path)) for path in paths]
        counts = [len(column) for column in columns]
        if counts[0] != counts[1]:
            raise TextError(
                f"{folder}: {paths[0].name} and {paths[1].name} must have equally many lines, "
                f"got {counts[0]:,} and {counts[1]:,}"
            )
        parts[part] = _whole_pairs(zip(*columns, strict=True))
        if not parts[part]:
            names = " and ".join(path.name for path in paths)
            raise TextError(f"{folder}: {names} must share a line that is empty in neither")
        empty += counts[0] - len(parts[part])
    held_out = parts.get("test", parts.get("val"))
    valid = parts.get("val") if "test" in parts else None
    return Texts(folder.resolve().name, languages, parts["train"], valid, held_out, empty)


def _read_file(path: Path, source: str | None, target: str | None) -> Texts:
    raw, where = read_unpacked(path), str(path)
    if raw.startswith(b"PK"):
        raw, where = _unzip(raw, path)
    lines = read_lines(raw, where)
    columns: tuple[int, int] | None = None
    rows: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) < 2:
            raise TextError(
                f"{where}: line {number} must be two sentences with a tab between, "
                f"got {line[:40]!r}"
            )
        columns = columns or _columns(fields)
        if len(fields) <= columns[1]:
            raise TextError(
                f"{where}: line {number} must have {columns[1] + 1} fields like the first, "
                f"got {len(fields)}"
            )
        rows.append((fields[columns[0]], fields[columns[1]]))
    named = languages_in_name(path.name)
    if named is None:
        languages = source or "source", target or "target"
        if is_same_language(*languages):
            raise TextError(
                f"{where}: --source and --target must be two languages, "
                f"got {' and '.join(map(repr, languages))}"
            )
    else:
        languages = choose_languages(named, source, target)
        rows = rows if languages == named else [(target, source) for source, target in rows]
    pairs = _whole_pairs(rows)
    if not pairs:
        raise TextError(f"{where}: must have a pair of two sentences, got none")
    return Texts(path.name, languages, pairs, empty=len(rows) - len(pairs))


def _both(
    folder: Path, part: str, files: Mapping[str, Path], languages: tuple[str, str]
) -> list[Path]:
    """The files of a part in both languages."""
    missing = [language for language in languages if language not in files]
    if missing:
        beside = next((f" beside {files[one].name}" for one in languages if one in files), "")
        names = " and ".join(f"{part}.{language}" for language in missing)
        raise TextError(f"{folder}: must have {names}{beside}, plain or .gz")
    return [files[language] for language in languages]


def _whole_pairs(rows: Iterable[Sequence[str]]) -> tuple[Pair, ...]:
    stripped = ([sentence.strip() for sentence in row] for row in rows)
    return tuple(Pair(*row) for row in stripped if all(row))


def _columns(fields: list[str]) -> tuple[int, int]:
    """Where the sentences are: tatoeba.org itself has the number of each before it."""
    return (1, 3) if len(fields) >= 4 and fields[0].isdigit() and fields[2].isdigit() else (0, 1)


def _unzip(raw: bytes, path: Path) -> tuple[bytes, str]:
    """The one file of pairs in an archive, and what messages call it."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            # manythings.org adds `_about.txt`, and a Mac a folder `__MACOSX`.
            names = [name for name in archive.namelist() if not name.startswith(("_", "."))]
            texts = [name for name in names if name.endswith((".txt", ".tsv"))]
            if len(texts) != 1:
                raise TextError(
                    f"{path}: the archive must hold one file of pairs (.txt or .tsv), "
                    f"got {', '.join(names[:9]) or 'none'}"
                )
            return read_member(archive, texts[0], path), f"{path}: {texts[0]}"
    except BROKEN_ZIP as error:
        raise TextError(f"{path}: broken zip file: {error}") from error
