"""The literature's file of the chorales, and what is wrong with a malformed one."""

import gzip
import json
import re

import pytest

from relpos_tasks import packed
from relpos_tasks.music import ScoreError, read_literature, split_literature

STEP = [74, 70, 65, 58]
GRIDS = {"train": [[STEP] * 5, [[-1, 70, 65, 58]] * 3], "valid": [[STEP] * 2]}


@pytest.mark.parametrize("name", ["grid.json", "grid.json.gz"])
def test_plain_and_gzipped_files_read_alike(tmp_path, name):
    path = tmp_path / name
    raw = json.dumps(GRIDS).encode()
    path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    parts = read_literature(path)
    assert {part: [piece.steps for piece in pieces] for part, pieces in parts.items()} == {
        "train": [5, 3],
        "valid": [2],
    }
    piece = parts["train"][1]
    assert piece.name == "train-001"
    assert piece.pitches[0].tolist() == [-1, 70, 65, 58]
    assert not piece.has_onsets
    assert piece.strikes.sum() == 3


def test_the_literatures_valid_is_held_out(tmp_path):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({"train": [[STEP] * n for n in range(1, 41)], "valid": [[STEP]]}))
    parts = read_literature(path)
    split = split_literature(parts)
    assert [piece.name for piece in split.held_out] == ["valid-000"]
    names = {piece.name for piece in parts["train"]}
    assert {piece.name for piece in (*split.train, *split.valid)} == names
    assert len(split.train) + len(split.valid) == 40
    assert 0 < len(split.valid) < 10


BROKEN = {
    "not JSON": (b"[", "got neither"),
    "a MIDI file": (b"MThd\x00", "must be a folder of MIDI files, got one of them"),
    "not text": (b"\xff\xfe\xfd", "got neither"),
    "cut gzip": (gzip.compress(b"[1, 2]" * 9)[:-9], "broken gzip file"),
    "no gzip": (b"\x1f\x8b\x08 nothing", "broken gzip file"),
    "a list": (b"[]", "must hold an object with lists 'train' and 'valid', got a list"),
    "no valid": (
        b'{"train": [[[1, 2, 3, 4]]]}',
        "a list 'valid' of pieces, got the keys ['train']",
    ),
    "three voices": (
        b'{"train": [[[1, 2, 3]]], "valid": [[[1, 2, 3, 4]]]}',
        "train[0]: must be (steps, 4) pitches, got (1, 3)",
    ),
    "ragged": (
        b'{"train": [[[1, 2], [3]]], "valid": [1]}',
        "train[0]: must be a list of [S, A, T, B]",
    ),
    "beyond floats": (
        b'{"train": [[[1' + b"0" * 400 + b', 2, 3, 4]]], "valid": [1]}',
        "train[0]: must be a list of",
    ),
    "words": (b'{"train": [[["a", 2, 3, 4]]], "valid": [1]}', "train[0]: must be a list of"),
    "no pitch": (
        b'{"train": [[[1, 2, 3, 4]]], "valid": [[[1, 2, 3, 4], [1, 128, 3, 4]]]}',
        "valid[0]: pitches must be whole MIDI pitches 0..127 or -1, got 128 in step 1 of the alto",
    ),
    "not a number": (
        b'{"train": [[[1, 2, 3, NaN]]], "valid": [1]}',
        "got nan in step 0 of the bass",
    ),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_malformed_file_is_named_with_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "grid.json"
    path.write_bytes(content)
    with pytest.raises(ScoreError, match=re.escape(message)) as caught:
        read_literature(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ScoreError, match=r"gone\.json: cannot be read: No such file"):
        read_literature(tmp_path / "gone.json")


def test_a_gzipped_file_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "LARGEST", 1000)
    (tmp_path / "large.json.gz").write_bytes(gzip.compress(b" " * 2000))
    with pytest.raises(ScoreError, match="larger than 1000 bytes when unpacked"):
        read_literature(tmp_path / "large.json.gz")
