"""A piece as MusicXML and engraved pages."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings

from relpos_tasks.music import Piece, read_piece
from relpos_tasks.music.score import musicxml_of, score_of, svg_pages
from tests.tasks.music.pieces import piece_from, pieces

RNG = np.random.default_rng(3)


@settings(deadline=None, max_examples=15)
@given(piece=pieces())
def test_a_written_score_reads_back_as_the_piece(piece, tmp_path_factory):
    sounding = (piece.pitches >= 0).any(axis=1).nonzero()[0]
    if not len(sounding):
        return
    path = tmp_path_factory.mktemp("score") / "piece.musicxml"
    path.write_text(musicxml_of(piece))
    again = read_piece(path)
    kept = slice(sounding[0], sounding[-1] + 1)
    assert np.array_equal(again.pitches, piece.pitches[kept])
    assert np.array_equal(again.onsets, piece.strikes[kept])
    assert again.pickup == (piece.pickup + sounding[0]) % piece.steps_per_bar
    assert (again.steps_per_bar, again.fifths) == (piece.steps_per_bar, piece.fifths)


def test_a_real_chorale_reads_back(by_name, tmp_path):
    for name in ("bwv66.6", "bwv269", "bwv281"):
        path = tmp_path / f"{name}.musicxml"
        path.write_text(musicxml_of(by_name[name]))
        again = read_piece(path)
        assert np.array_equal(again.pitches, by_name[name].pitches)
        assert np.array_equal(again.onsets, by_name[name].onsets)


def test_bars_clefs_key_and_names_are_those_of_a_choir_score(by_name):
    root = ElementTree.fromstring(musicxml_of(by_name["bwv66.6"], title="A & B"))
    assert root.findtext(".//movement-title") == "A & B"
    names = [name.text for name in root.findall("part-list/score-part/part-name")]
    assert names == ["Soprano", "Alto", "Tenor", "Bass"]
    clefs = [
        (clef.findtext("sign"), clef.findtext("clef-octave-change"))
        for clef in root.findall(".//clef")
    ]
    assert clefs == [("G", None), ("G", None), ("G", "-1"), ("F", None)]
    assert {key.text for key in root.findall(".//key/fifths")} == {"3"}
    first = root.find("part/measure")
    assert first is not None
    assert (first.get("number"), first.get("implicit")) == ("0", "yes")
    assert root.findtext("part/measure[last()]/barline/bar-style") == "light-heavy"


def test_notes_over_a_bar_line_are_tied():
    pitches = np.full((24, 4), 60, np.int16)
    onsets = np.zeros((24, 4), np.bool_)
    onsets[0] = True
    root = ElementTree.fromstring(musicxml_of(Piece("p", pitches, onsets, pickup=5)))
    ties = [tie.get("type") for tie in root.findall("part[1]//note/tie")]
    assert ties == ["start", "stop", "start", "stop", "start", "stop"]


@pytest.mark.parametrize(
    ("fifths", "midi", "name"),
    [(0, 61, "C#"), (0, 70, "B-"), (0, 63, "E-"), (3, 64, "E"), (3, 65, "E#"), (-3, 68, "A-"),
     (-4, 71, "C-"), (6, 65, "E#"), (-6, 71, "C-"), (4, 60, "B#"), (2, 70, "A#")],
)  # fmt: skip
def test_pitches_are_spelled_as_the_key_asks(fifths, midi, name):
    pitches = np.full((4, 4), midi, np.int16)
    onsets = np.array([[True] * 4] + [[False] * 4] * 3)
    piece = Piece("p", pitches, onsets, fifths=fifths)
    head = score_of(piece).parts[0].recurse().notes[0]
    assert (head.pitch.name, head.pitch.midi) == (name, midi)


def test_the_same_piece_gives_the_same_text_and_pages():
    piece = piece_from(RNG, 65)
    text = musicxml_of(piece, title="Of its own")
    assert text == musicxml_of(piece, title="Of its own")
    assert not re.search(r"\d{4}-\d\d-\d\d", text)
    assert svg_pages(text) == svg_pages(text)
    assert "Of its own" in "".join(svg_pages(text))
    assert "Of its own" not in "".join(svg_pages(text, title=False))


def test_long_pieces_take_several_pages():
    pages = svg_pages(musicxml_of(piece_from(RNG, 513)))
    assert len(pages) > 1
    for page in pages:
        assert ElementTree.fromstring(page).tag.endswith("svg")


def test_a_piece_without_steps_is_refused_in_words():
    with pytest.raises(ValueError, match="piece must have a step, got 'empty' without any"):
        score_of(piece_from(RNG, 0, name="empty"))


def test_what_is_no_score_is_refused_in_words():
    with pytest.raises(ValueError, match="musicxml must be MusicXML, got 'no score'"):
        svg_pages("no score")
