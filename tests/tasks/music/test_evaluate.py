"""Nats per token of pieces; how they are measured is tested in `test_windows`."""

import math

import pytest

from relpos_tasks.music.evaluate import held_out_nats, lengths_test, long_enough
from tests.tasks.music.test_windows import Uniform
from tests.tasks.small import SMALL


def test_a_uniform_model_costs_the_logarithm_of_the_vocabulary(source):
    size = source.vocabulary.size
    measured = held_out_nats(Uniform(size), source.split.held_out, source.vocabulary, window=16)
    assert measured == pytest.approx(math.log(size), abs=1e-12)


def test_the_length_test_measures_the_same_long_pieces(source):
    pieces = source.split.held_out
    assert [piece.steps for piece in long_enough(pieces, window=16)] == [33, 16, 70]
    assert [piece.steps for piece in long_enough(pieces, window=24)] == [33, 70]
    measured = lengths_test(
        Uniform(source.vocabulary.size), pieces, source.vocabulary, window=SMALL.window
    )
    assert list(measured) == [16, 32, 64]
    assert len({round(value, 9) for value in measured.values()}) == 1


def test_without_long_pieces_there_is_no_length_test(source):
    assert lengths_test(Uniform(9), source.split.held_out, source.vocabulary, window=512) == {}
