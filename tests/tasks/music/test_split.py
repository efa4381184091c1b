"""Pieces of the same music never straddle the split."""

import random

import numpy as np

from relpos_tasks.music import same_music, split_pieces, transpose
from tests.tasks.music.pieces import piece_from


def names(pieces):
    return [piece.name for piece in pieces]


def test_the_split_depends_on_nothing_but_the_pieces(corpus):
    split = split_pieces(corpus)
    shuffled = list(corpus)
    random.Random(0).shuffle(shuffled)
    again = split_pieces(shuffled)
    for part in ("train", "valid", "held_out"):
        assert names(getattr(split, part)) == names(getattr(again, part))
    assert str(split) == (
        "train 301 pieces, 263,117 tokens; valid 30 pieces, 25,278 tokens; "
        "held out 34 pieces, 29,730 tokens"
    )


def test_every_piece_is_in_one_part(corpus):
    split = split_pieces(corpus)
    assert sorted(names((*split.train, *split.valid, *split.held_out))) == names(corpus)


def test_the_same_music_falls_into_the_same_part(corpus):
    groups = [group for group in same_music(corpus) if len(group) > 1]
    assert len(groups) == 18
    assert sum(map(len, groups)) == 39
    assert ["bwv227.1", "bwv227.11"] in map(names, groups)
    split = split_pieces(corpus)
    parts = [set(names(part)) for part in (split.train, split.valid, split.held_out)]
    for group in groups:
        assert any(set(names(group)) <= part for part in parts)


def test_a_transposed_copy_with_some_other_notes_is_the_same_music():
    rng = np.random.default_rng(0)
    one, other = piece_from(rng, 257, name="one"), piece_from(rng, 257, name="other")
    changed = transpose(one, 3)
    pitches = changed.pitches.copy()
    pitches[:60, 1] = 60
    onsets = np.ones_like(changed.onsets) & (pitches >= 0)
    copy = type(one)("copy", pitches, onsets, pickup=0)
    assert [names(group) for group in same_music([other, one, copy])] == [
        ["copy", "one"],
        ["other"],
    ]


def test_chains_of_the_same_music_are_one_group():
    rng = np.random.default_rng(0)
    first, second = piece_from(rng, 256, name="a"), piece_from(rng, 256, name="c")
    both = type(first)(
        "d",
        np.concatenate([first.pitches, second.pitches]),
        np.concatenate([first.onsets, second.onsets | (second.pitches != -1)]),
    )
    assert [names(group) for group in same_music([first, second, both])] == [["a", "c", "d"]]


def test_short_and_empty_pieces_are_alone():
    rng = np.random.default_rng(0)
    short = [piece_from(rng, steps, name=str(steps)) for steps in (0, 1, 9)]
    assert [names(group) for group in same_music(short)] == [["0"], ["1"], ["9"]]
