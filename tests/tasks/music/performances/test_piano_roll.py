"""The piano roll: a line for each note, the same bytes each time."""

import xml.etree.ElementTree as ET

import numpy as np

from relpos_tasks.music.performances.performance import performance_of
from relpos_tasks.music.performances.piano_roll import piano_roll
from tests.tasks.music.performances.played import played


def lines_in(svg):
    name = "{http://www.w3.org/2000/svg}"
    groups = [g for g in ET.fromstring(svg).iter(f"{name}g") if "LineColl" in g.get("id", "")]
    return [path for group in groups for path in group.iter(f"{name}path")]


def test_every_note_is_drawn():
    one = played(np.random.default_rng(0), 33)
    assert len(lines_in(piano_roll(one))) == one.notes
    assert piano_roll(one) == piano_roll(one)


def test_silence_can_be_drawn():
    assert not lines_in(piano_roll(performance_of("", [], [], [], [])))
