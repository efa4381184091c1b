"""Files that appear whole or not at all."""

import errno
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from relpos_tasks import files
from relpos_tasks.files import (
    PARTIAL,
    check_writable,
    read_whole,
    remove_partial,
    replacing,
    write_bytes,
    write_json,
    write_text,
    write_together,
)
from tests.tasks.small import disk_with


def test_files_are_written_whole_with_their_folders(tmp_path):
    write_text(tmp_path / "a" / "b.txt", "é")
    write_bytes(tmp_path / "c.bin", b"\x00")
    write_json(tmp_path / "d.json", {"x": [1, None]})
    assert (tmp_path / "a" / "b.txt").read_bytes() == "é".encode()
    assert (tmp_path / "c.bin").read_bytes() == b"\x00"
    assert json.loads((tmp_path / "d.json").read_text()) == {"x": [1, None]}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "c.bin", "d.json"]


def test_what_killed_processes_left_is_removed_and_what_others_write_now_is_not(tmp_path):
    old, new, other = (tmp_path / name for name in (f"{PARTIAL}a", f"{PARTIAL}b", "c"))
    for path in (old, new, other):
        path.touch()
    os.utime(old, (0, 0))
    remove_partial(tmp_path, older_than=60.0)
    assert sorted(tmp_path.iterdir()) == [new, other]
    remove_partial(tmp_path)
    assert [*tmp_path.iterdir()] == [other]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("before")

    def interrupted():
        with replacing(path) as partial:
            partial.write_text("half")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["a folder", "a file/a.txt"])
def test_an_error_names_the_file_and_not_the_unfinished_one(tmp_path, place):
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").write_text("")
    with pytest.raises(OSError, match=place.partition("/")[0]) as error:
        write_text(tmp_path / place, "text")
    assert PARTIAL not in str(error.value)
    assert not list(tmp_path.glob(f"{PARTIAL}*"))


def test_nan_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert not list(tmp_path.iterdir())


def test_a_written_file_may_be_read_by_those_who_may_read_any(tmp_path):
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"before")
    with disk_with(1000), pytest.raises(OSError, match=r"a\.bin"):
        write_bytes(path, b"x" * 2000)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named_through_torchs_own_error_too(tmp_path):
    path = tmp_path / "a.pt"

    def save():
        with replacing(path) as partial, partial.open("wb", buffering=0) as file:
            torch.save(torch.zeros(10_000), file)

    with disk_with(1000), pytest.raises(OSError, match=r"a\.pt"):
        save()
    assert not list(tmp_path.iterdir())


def test_files_of_one_result_are_written_together_or_not_at_all(tmp_path):
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    with disk_with(1000), pytest.raises(OSError, match=r"large\.txt"):
        write_together({small: b"x", large: b"x" * 2000})
    assert not list(tmp_path.iterdir())
    write_together({small: b"x", large: b"x" * 2000})
    assert sorted(tmp_path.iterdir()) == [large, small]


@pytest.mark.parametrize("before", [None, "before"])
def test_where_one_cannot_take_its_place_all_stay_as_they_were(tmp_path, monkeypatch, before):
    paths = [tmp_path / f"{n}.txt" for n in range(3)]
    for path in paths if before else []:
        path.write_text(before)
    replaced = files.os.replace

    def in_use(source, target):
        if target == paths[-1]:
            raise PermissionError(13, "in use", str(target))
        return replaced(source, target)

    monkeypatch.setattr(files.os, "replace", in_use)
    with pytest.raises(PermissionError, match=r"2\.txt"):
        write_together(dict.fromkeys(paths, b"after"))
    assert {path: path.read_text() for path in tmp_path.iterdir()} == (
        dict.fromkeys(paths, before) if before else {}
    )


def test_a_process_that_ends_has_no_unfinished_file_and_moves_none_any_more(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_moving", threading.Lock())

    def write():
        with replacing(tmp_path / "a.txt") as partial:
            partial.write_text("half")
            files.abandon_unfinished()
            assert not list(tmp_path.iterdir())
            assert files._moving.locked()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        ("folder", "there is a folder of this name"),
        ("file/a.txt", "file is not a folder"),
        ("file/new/a.txt", "file is not a folder"),
        ("closed/a.txt", "nothing may be added to .*closed: Permission denied"),
        ("closed/new/a.txt", "nothing may be added to .*closed: Permission denied"),
        ("nowhere/a.txt", "nothing may be added to .*: File exists"),
        (f"{'x' * 256}/a.txt", "File name too long"),
    ],
    ids=lambda value: value[:20],
)
def test_what_cannot_be_written_is_known_before(tmp_path, monkeypatch, place, rule):
    for name in ("folder", "closed"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    before = sorted(tmp_path.rglob("*"))
    for make in ("mkdir", "touch"):
        monkeypatch.setattr(Path, make, refused_in("closed", getattr(Path, make)))
    with pytest.raises(ValueError, match=rf"{place}: cannot be written, .*{rule}"):
        check_writable(tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_device_or_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(os.devnull)
    for name in ("pipe", "link"):
        with pytest.raises(ValueError, match=f"{name}: cannot be written, .* a device or a pipe"):
            check_writable(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()


def refused_in(folder, make):
    """As a file system does; to root nothing is closed by a mode."""

    def refuse(self, *given, **named):
        if self.parent.name == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return make(self, *given, **named)

    return refuse


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_folder_that_only_making_it_shows_to_be_impossible_is_known_before():
    with pytest.raises(ValueError, match=r"^/proc/new/a.txt: cannot be written, nothing may be"):
        check_writable(Path("/proc/new/a.txt"))


def test_trying_whether_a_file_can_be_written_leaves_nothing_and_keeps_what_is_there(tmp_path):
    check_writable(tmp_path / "new" / "newer" / "a.txt")
    assert not list(tmp_path.iterdir())
    (tmp_path / "a.txt").write_text("whole")
    check_writable(tmp_path / "a.txt")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["whole"]


def test_only_ordinary_files_of_a_bearable_size_are_read(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"12345")
    assert read_whole(tmp_path / "a.txt") == b"12345"
    monkeypatch.setattr(files, "LARGEST", 4)
    os.mkfifo(tmp_path / "pipe")
    for name, rule in (("a.txt", "larger than 4"), ("pipe", "not an ordinary"), (".", "directory")):
        with pytest.raises(OSError, match=rule):
            read_whole(tmp_path / name)


def test_several_processes_may_look_at_a_missing_folder_at_once(tmp_path):
    path = tmp_path / "new" / "newer" / "a.txt"
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(check_writable, path) for _ in range(4000)]:
            done.result()
    assert not path.exists()


def test_a_folder_that_another_process_takes_away_is_made_again(tmp_path, monkeypatch):
    folder, exists = tmp_path / "new", Path.exists

    def exists_no_more(path: Path, **options: bool) -> bool:
        found = exists(path, **options)
        if path == folder and found:
            folder.rmdir()
        return found

    folder.mkdir()
    monkeypatch.setattr(Path, "exists", exists_no_more)
    check_writable(folder / "newer" / "a.txt")
    monkeypatch.undo()
    assert not folder.exists()
