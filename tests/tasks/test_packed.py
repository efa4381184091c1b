"""Packed files are unpacked, up to a size, and broken ones are errors of the system's kind."""

import gzip
import io
import zipfile

import pytest

from relpos_tasks import packed
from relpos_tasks.packed import BROKEN_ZIP, read_member, read_unpacked


def archive_of(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", content)
    return file.getvalue()


def test_the_first_bytes_tell_what_is_gzipped(tmp_path):
    (tmp_path / "a.gz").write_bytes(b"plain")
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"packed"))
    assert read_unpacked(tmp_path / "a.gz") == b"plain"
    assert read_unpacked(tmp_path / "a.txt") == b"packed"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(b"x" * 99)[:-9], "broken gzip file: Compressed file ended"),
        (b"\x1f\x8b\x08 nothing", "broken gzip file"),
        (gzip.compress(b"x" * 101), "larger than 100 bytes when unpacked"),
        (b"x" * 101, "larger than 100 bytes"),
    ],
    ids=["cut", "none", "large", "plain"],
)
def test_what_cannot_be_unpacked_is_an_error_that_names_the_file(
    tmp_path, monkeypatch, content, reason
):
    monkeypatch.setattr(packed, "LARGEST", 100)
    monkeypatch.setattr("relpos_tasks.files.LARGEST", 100)
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(OSError, match=reason) as caught:
        read_unpacked(tmp_path / "a.gz")
    assert caught.value.filename == str(tmp_path / "a.gz")


def test_a_member_of_an_archive_is_read_up_to_a_size(monkeypatch):
    with zipfile.ZipFile(io.BytesIO(archive_of(b"x" * 101))) as archive:
        assert read_member(archive, "a.txt", "a.zip") == b"x" * 101
        monkeypatch.setattr(packed, "LARGEST", 100)
        with pytest.raises(OSError, match=r"a\.txt in the archive is larger than 100 bytes"):
            read_member(archive, "a.txt", "a.zip")


def test_what_a_broken_archive_raises_is_known():
    for broken in (archive_of(b"x" * 99)[:-30], b"PK nothing"):
        with pytest.raises(BROKEN_ZIP):
            zipfile.ZipFile(io.BytesIO(broken))
    damaged = bytearray(archive_of(bytes(range(256)) * 9))
    damaged[60] ^= 255
    with zipfile.ZipFile(io.BytesIO(bytes(damaged))) as archive, pytest.raises(BROKEN_ZIP):
        read_member(archive, "a.txt", "a.zip")
