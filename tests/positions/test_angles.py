"""Angles of far positions, and what is left of them without whole turns."""

from math import cos, pi, sin

import pytest
import torch
from torch.testing import assert_close

from relpos.positions.angles import angles_at, frequencies, less_whole_turns

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dim", [1, 2, 5, 8])
def test_there_is_a_frequency_for_each_pair_and_for_half_a_one(dim):
    want = [100.0 ** (-2 * c / dim) for c in range((dim + 1) // 2)]
    assert frequencies(100.0, dim).tolist() == pytest.approx(want, rel=1e-15)


@pytest.mark.parametrize("at", [0, 7, -7, 100_000, -100_000, 2**31 + 5, 400_000_001])
def test_without_whole_turns_nothing_is_lost_in_float32(at):
    inv_freq = frequencies(10000.0, 8)
    angles = less_whole_turns(angles_at(torch.tensor([at]), inv_freq), torch.float32)[0]
    assert angles.dtype == torch.float32
    for got, frequency in zip(angles.double().tolist(), inv_freq.tolist(), strict=True):
        assert 0 <= got <= 2 * pi * (1 + EPS)
        assert cos(got) == pytest.approx(cos(at * frequency), abs=4 * EPS)
        assert sin(got) == pytest.approx(sin(at * frequency), abs=4 * EPS)


def test_in_float64_angles_stay_as_they_are():
    angles = angles_at(torch.tensor([3, 100_000]), frequencies(10000.0, 8))
    assert_close(less_whole_turns(angles, torch.float64), angles, rtol=0, atol=0)


def test_coordinates_between_two_tokens_have_angles_too():
    at = torch.tensor([0.0, 1.5], dtype=torch.float64)
    assert angles_at(at, frequencies(100.0, 4)).tolist() == [[0, 0], [1.5, pytest.approx(0.15)]]
