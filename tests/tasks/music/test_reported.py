"""The literature's pieces are known by their number and size, and figures go with them alone."""

from dataclasses import replace

import numpy as np
import pytest

from relpos_tasks.music.chorale_composer import ChoraleComposer
from relpos_tasks.music.reported import HUANG_2018, is_literature
from tests.tasks.music.pieces import piece_from
from tests.tasks.small import small

# 76 pieces of 18,408 sixteenths, as in the literature's valid.
LENGTHS = [242] * 60 + [243] * 16


@pytest.fixture(scope="module")
def pieces():
    rng = np.random.default_rng(0)
    return [piece_from(rng, steps, name=f"valid-{n}") for n, steps in enumerate(LENGTHS)]


def test_other_pieces_are_not_those_of_the_literature(pieces):
    assert is_literature(pieces)
    assert not is_literature(pieces[1:])
    assert not is_literature([*pieces[1:], pieces[-1]])
    assert not is_literature([])


def test_the_page_has_figures_of_others_on_the_literatures_pieces_alone(pieces, source):
    composer, settings = ChoraleComposer(), small()
    literature = replace(source, split=replace(source.split, held_out=tuple(pieces)))
    assert composer.words(settings, literature).reported is HUANG_2018
    assert composer.words(settings, source).reported is None
