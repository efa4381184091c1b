"""Gzipped and zipped files, unpacked into no more memory than an ordinary file may take."""

from __future__ import annotations

import errno
import gzip
import io
import zipfile
import zlib
from pathlib import Path

from .files import LARGEST, read_whole

__all__ = ["BROKEN_ZIP", "read_member", "read_unpacked"]

# What reading a zip archive raises that is damaged, encrypted, or packed in a way unknown here.
BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def read_unpacked(path: str | Path) -> bytes:
    """The bytes of an ordinary file, plain or gzipped.

    Args:
        path: the file; its first bytes tell whether it is gzipped, not its name.

    Raises:
        OSError: if it cannot be read or unpacked, or holds more than `LARGEST` bytes.
    """
    raw = read_whole(path)
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as unpacked:
            content = unpacked.read(LARGEST + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise OSError(errno.EINVAL, f"broken gzip file: {error}", str(path)) from error
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, f"larger than {LARGEST} bytes when unpacked", str(path))
    return content


def read_member(archive: zipfile.ZipFile, name: str, path: str | Path) -> bytes:
    """The bytes of a file in a zip archive.

    Args:
        archive: open.
        name: of the file in it.
        path: of the archive, for the message.

    Raises:
        OSError: if the file holds more than `LARGEST` bytes.
    """
    if archive.getinfo(name).file_size > LARGEST:
        reason = f"{name} in the archive is larger than {LARGEST} bytes"
        raise OSError(errno.EFBIG, reason, str(path))
    return archive.read(name)
