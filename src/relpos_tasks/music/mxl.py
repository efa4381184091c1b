"""From a MusicXML file, plain or compressed, to its XML tree."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from ..files import read_whole
from ..packed import BROKEN_ZIP, read_member
from .score_lines import ScoreError

__all__ = ["read_xml"]


def read_xml(path: str | Path) -> ElementTree.Element:
    """The root `<score-partwise>` of a MusicXML file.

    Args:
        path: a plain or a compressed file; its first bytes tell which, not its name.

    Returns:
        The root element.

    Raises:
        ScoreError: if the file is missing, broken, or no score-partwise MusicXML.
    """
    try:
        content = read_whole(path)
        if content.startswith(b"PK"):
            content = _unzip(content, str(path))
        root = ElementTree.fromstring(content)
    except OSError as error:
        raise ScoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except BROKEN_ZIP as error:
        raise ScoreError(f"{path}: broken compressed MusicXML: {error}") from error
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        if isinstance(error, ScoreError):
            raise
        raise ScoreError(f"{path}: not well-formed XML: {error}") from error
    if root.tag != "score-partwise":
        raise ScoreError(f"{path}: must be MusicXML with root <score-partwise>, got <{root.tag}>")
    return root


def _unzip(content: bytes, path: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        name = _score_name(archive, path)
        if name not in archive.namelist():
            raise ScoreError(f"{path}: the archive holds no score")
        return read_member(archive, name, path)


def _score_name(archive: zipfile.ZipFile, path: str) -> str | None:
    names = archive.namelist()
    if "META-INF/container.xml" in names:
        container = ElementTree.fromstring(read_member(archive, "META-INF/container.xml", path))
        for element in container.iter():
            # The container may or may not declare a namespace.
            if element.tag.rpartition("}")[2] == "rootfile":
                return element.get("full-path")
    scores = [name for name in names if name.endswith((".xml", ".musicxml"))]
    return next((name for name in scores if not name.startswith("META-INF/")), None)
