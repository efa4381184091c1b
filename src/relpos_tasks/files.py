"""Files that appear whole or not at all, even when the program is stopped half-way."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["PARTIAL", "replacing", "write_bytes", "write_json", "write_text"]

# How the names of unfinished files begin.
PARTIAL = ".part-"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A name to write to, which takes the place of `path` when the block ends well.

    Args:
        path: the file to make or to replace; its folder is made if it is missing.

    Yields:
        A name in the same folder, with the same ending.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as partial:
    ...         written = partial.write_text("whole")
    ...     os.listdir(folder)
    ['a.txt']
    """
    path = Path(path)
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=PARTIAL, suffix=path.suffix)
        os.close(handle)
        partial = Path(name)
        yield partial
        # mkstemp lets nobody else read; a result is an ordinary file.
        partial.chmod(0o666 & ~_umask())
        os.replace(partial, path)
    except OSError as error:
        # Whoever reads the message knows nothing of the unfinished file.
        if PARTIAL in str(error.filename):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


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
        content: its text.
    """
    write_bytes(path, content.encode())


def write_json(path: str | Path, content: Any) -> None:
    """Write a whole file of indented JSON.

    Args:
        path: the file.
        content: what `json` can write; NaN is refused.
    """
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
