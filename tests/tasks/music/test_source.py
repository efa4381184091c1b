"""Where pieces come from, and what they are known by."""

import json

import numpy as np
import pytest

from relpos_tasks.music import ScoreError, Split
from relpos_tasks.music import source as source_module
from relpos_tasks.music.source import read_source
from tests.tasks.music.pieces import piece_from
from tests.tasks.small import write_grid


def test_the_source_of_a_file_is_known_by_its_content(tmp_path):
    one = read_source(write_grid(tmp_path / "one.json"))
    two = read_source(write_grid(tmp_path / "two.json"))
    assert (one.name, two.name) == ("one.json", "two.json")
    assert one.digest == two.digest
    assert not one.vocabulary.onsets
    assert [piece.name for piece in one.split.held_out] == ["valid-000", "valid-001"]
    assert json.loads(json.dumps(one.about())) == one.about()


def test_validation_pieces_are_trained_on_too_where_that_is_asked_for(tmp_path):
    path = write_grid(tmp_path / "one.json")
    apart, together = (read_source(path, train_on_valid=it) for it in (False, True))
    parts = [[piece.name for piece in it.split.train] for it in (apart, together)]
    assert parts[1] == parts[0] + [piece.name for piece in apart.split.valid]
    for name in ("valid", "held_out"):
        sequences = [getattr(it, name)() for it in (apart, together)]
        assert all(map(np.array_equal, *sequences))
    # The same music.
    assert apart.digest == together.digest
    assert apart.about()["split"] != together.about()["split"]


def test_a_piece_beyond_the_vocabulary_is_named_before_anything_is_trained(tmp_path):
    path = write_grid(tmp_path / "jsb.json")
    content = json.loads(path.read_text())
    content["valid"][1][3] = [120, 60, 50, 40]
    path.write_text(json.dumps(content))
    with pytest.raises(ScoreError, match=r"jsb\.json: .* got 120 in step 3 .* of 'valid-001'"):
        read_source(path)


@pytest.mark.parametrize("part", ["train", "valid", "held_out"])
def test_an_empty_part_is_refused_in_words(monkeypatch, part):
    piece = piece_from(np.random.default_rng(0), 9)
    parts = {"train": (piece,), "valid": (piece,), "held_out": (piece,)} | {part: ()}
    monkeypatch.setattr(source_module, "chorales", lambda progress: [])
    monkeypatch.setattr(source_module, "split_pieces", lambda pieces: Split(**parts))
    with pytest.raises(ScoreError, match=r"music21: every part .* must have a piece, got train "):
        read_source()
