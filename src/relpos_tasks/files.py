"""Files that appear whole or not at all, even when the program is stopped half-way."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from stat import S_ISDIR
from typing import Any

__all__ = [
    "LARGEST",
    "PARTIAL",
    "abandon_unfinished",
    "check_writable",
    "json_text",
    "naming",
    "read_whole",
    "remove_partial",
    "replacing",
    "utf8",
    "write_bytes",
    "write_json",
    "write_text",
    "write_together",
]

# How the names of unfinished files begin.
PARTIAL = ".part-"
# Bytes. A chorale takes 0.2 MB, a symphony 30, a corpus of chorales 5; more is another kind of
# file, or one made to fill the memory.
LARGEST = 200_000_000

# How often a folder is made that another process takes away.
_TRIES = 100

_unfinished: set[Path] = set()
# Held while finished files take their places, so that those of one result come together.
_moving = threading.Lock()


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A name to write to, which takes the place of `path` when the block ends well.

    Args:
        path: the file to make or to replace; its folder is made if it is missing.

    Yields:
        An empty file in the same folder, with the same ending.

    Raises:
        OSError: that names `path`, if it cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as partial:
    ...         written = partial.write_text("whole")
    ...     os.listdir(folder)
    ['a.txt']
    """
    with naming(path), _beside(Path(path)) as partial:
        yield partial
        with _moving:
            os.replace(partial, path)


def remove_partial(folder: Path, *, older_than: float = 0.0) -> None:
    """Remove unfinished files of processes that were killed while they wrote.

    Args:
        folder: where they are.
        older_than: seconds since they were last written to, where others may write now.
    """
    for partial in folder.glob(f"{PARTIAL}*"):
        with suppress(OSError):
            if not older_than or time.time() - partial.stat().st_mtime >= older_than:
                partial.unlink()


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several whole files: all of them, or none, and then those from before stay.

    Args:
        contents: the bytes of each file.

    Raises:
        OSError: that names the file which cannot be written.
    """
    with ExitStack() as files:
        finished, before = {}, {}
        for path, content in contents.items():
            with naming(path):
                finished[path] = files.enter_context(_beside(path))
                finished[path].write_bytes(content)
                if path.exists():
                    before[path] = files.enter_context(_beside(path))
                    shutil.copyfile(path, before[path])
        with _moving, ExitStack() as torn:
            for path, partial in finished.items():
                with naming(path):
                    os.replace(partial, path)
                if path in before:
                    torn.callback(os.replace, before[path], path)
                else:
                    torn.callback(path.unlink)
            torn.pop_all()


def read_whole(path: str | Path) -> bytes:
    """The bytes of an ordinary file.

    Args:
        path: the file; a device or a pipe may have no end.

    Raises:
        OSError: if it cannot be read, is no file, or holds more than `LARGEST` bytes.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, f"larger than {LARGEST} bytes", str(path))
    return content


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a whole file.

    Args:
        path: the file.
        content: its bytes.
    """
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: str | Path, content: str) -> None:
    """Write a whole file of UTF-8 text.

    Args:
        path: the file.
        content: its text, as `utf8` takes it.
    """
    write_bytes(path, utf8(content))


def utf8(content: str) -> bytes:
    """Text in UTF-8; bytes of a file's name that are no text are escaped.

    Args:
        content: the text.
    """
    return content.encode(errors="backslashreplace")


def write_json(path: str | Path, content: Any) -> None:
    """Write a whole file of indented JSON.

    Args:
        path: the file.
        content: what `json` can write; NaN is refused.
    """
    write_text(path, json_text(content))


def json_text(content: Any) -> str:
    """What a file of indented JSON holds.

    Args:
        content: what `json` can write; NaN is refused.
    """
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def check_writable(path: Path) -> None:
    """Raise if a file cannot be written here, before any work is done for it.

    Missing folders and an empty file are made and removed again: what a system refuses (a disk that
    is read-only, a folder below /proc) shows in no other way.

    Args:
        path: the file; its folder may be missing.

    Raises:
        ValueError: that names the path and what is in the way.
    """
    if (reason := _in_the_way(path)) is not None:
        raise ValueError(f"{path}: cannot be written, {reason}")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let an error of the system inside the block name a file.

    A full disk has no name, and an unfinished file has one that nobody knows. torch's writer hides
    the system's error behind its own.

    Args:
        path: the file that the block writes.

    Raises:
        OSError: in place of the block's own.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        failed: BaseException | None = error
        while failed is not None and not isinstance(failed, OSError):
            failed = failed.__context__
        if failed is None:
            raise
        if failed.filename is None or PARTIAL in str(failed.filename):
            failed = OSError(failed.errno, failed.strerror or str(failed), str(path))
        raise failed from error


def abandon_unfinished() -> None:
    """Remove the unfinished files of all threads, and let no finished one take its place any more.

    For a process that is about to end.
    """
    # Files that are taking their places may do so to the end, if the disk lets them.
    _moving.acquire(timeout=1.0)
    for partial in list(_unfinished):
        with suppress(OSError):
            partial.unlink()


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """An unfinished file in the same folder, which is gone after the block."""
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}{path.suffix[:16]}")
    # Noted before it is there, so that a stopped process leaves none behind.
    _unfinished.add(partial)

    def make() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch(exist_ok=False)

    try:
        _again_if_gone(make)
        yield partial
    finally:
        partial.unlink(missing_ok=True)
        _unfinished.discard(partial)


def _in_the_way(path: Path) -> str | None:
    """Why a file cannot be written, in words; None if it can."""
    try:
        if path.is_dir():
            return "there is a folder of this name"
        if path.exists() and not path.is_file():
            # A device or a pipe would be replaced, not written to.
            return "there is no ordinary file of this name, but a device or a pipe"
        ground = next((folder for folder in path.parents if folder.exists()), path.parent)
        missing = list(takewhile(lambda folder: folder != ground, path.parents))
        if not S_ISDIR(ground.stat().st_mode):
            return f"{ground} is not a folder"
    except FileNotFoundError:
        missing.append(ground)  # another process that looks has taken it away
    except OSError as error:
        return _reason(error)
    with ExitStack() as made:
        try:
            for folder in reversed(missing):
                _again_if_gone(lambda folder=folder: folder.mkdir(parents=True, exist_ok=True))
                made.callback(_remove_if_empty, folder)
            with _beside(path):
                pass
        except OSError as error:
            return f"nothing may be added to {ground}: {_reason(error)}"
    return None


def _again_if_gone(make: Callable[[], None]) -> None:
    """Make what another process, which looks whether it may write there, may take away."""
    for _ in range(_TRIES):
        # The latter where it goes between two looks of `mkdir`.
        with suppress(FileNotFoundError, FileExistsError):
            return make()
    return make()


def _remove_if_empty(folder: Path) -> None:
    # Another process may have begun to write there.
    with suppress(OSError):
        folder.rmdir()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
