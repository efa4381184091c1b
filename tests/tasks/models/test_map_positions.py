"""Position schemes of maps: where they act, and what becomes of them on a map of another size."""

import math

import pytest
import torch
from torch.testing import assert_close

from relpos import relative_logits
from relpos_tasks.models.map_positions import (
    MAP_POSITIONS,
    LearnedMapPositions,
    SinusoidalMapPositions,
)
from relpos_tasks.models.pixel_classifier import PixelClassifierConfig

SIZES = PixelClassifierConfig(width=16, heads=2, shape=(5, 7))


def test_learned_rows_keep_their_places_and_repeat_at_the_edge():
    position = LearnedMapPositions(4, (2, 3))
    added = position(torch.zeros(1, 4, 4, 5))[0]
    assert_close(added[:, :2, :3], position.rows)
    assert_close(added[:, 3, 4], position.rows[:, 1, 2])
    assert_close(added[:, 0, 4], position.rows[:, 0, 2])
    assert_close(position(torch.zeros(1, 4, 1, 2))[0], position.rows[:, :1, :2])


def test_resized_rows_are_those_of_torch():
    position = LearnedMapPositions(4, (4, 3), resize=True)
    same = position(torch.zeros(1, 4, 4, 3))[0]
    assert_close(same, position.rows)
    larger = position(torch.zeros(1, 4, 9, 7))
    want = torch.nn.functional.interpolate(position.rows[None], size=(9, 7), mode="bicubic")
    assert_close(larger, want)


def test_sinusoids_are_those_of_the_row_and_of_the_column():
    added = SinusoidalMapPositions(8, scale=0.5)(torch.zeros(1, 8, 3, 4))[0]
    for row, column in ((0, 0), (2, 1), (1, 3)):
        want = [
            0.5 * wave(at * 10000 ** (-2 * c / 4))
            for at in (row, column)
            for c in range(2)
            for wave in (math.sin, math.cos)
        ]
        assert_close(added[:, row, column], torch.tensor(want))


def test_an_odd_number_of_channels_is_refused():
    with pytest.raises(ValueError, match="dim must be even, got 7"):
        SinusoidalMapPositions(7)


def logits_between(position, shape, pairs):
    """What a scheme adds to the scores of equal queries and keys, for pairs of places."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 2, 1, SIZES.head_dim, generator=generator)
    q = q.expand(-1, -1, shape[0] * shape[1], -1)
    options = {"shape": shape} if getattr(position, "reads_shape", False) else {}
    scores = relative_logits(q, q, position(q, q, **options)[2])[0]
    at = [[row * shape[1] + column for row, column in pair] for pair in pairs]
    return torch.stack([scores[:, i, j] for i, j in at])


# The same offset (2 down, 1 to the left) from several places.
PAIRS = [((0, 3), (2, 2)), ((1, 1), (3, 0)), ((2, 6), (4, 5))]


@pytest.mark.parametrize("name", ["grid", "grid-concatenated", "window", "sequence", "continuous"])
def test_relative_schemes_see_the_offset_alone(name):
    torch.manual_seed(0)
    found = logits_between(MAP_POSITIONS[name].make(SIZES), SIZES.shape, PAIRS)
    assert_close(found[1:], found[:1].expand(2, -1))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("grid", True), ("grid-concatenated", True), ("window", True), ("continuous", True),
        ("grid-resized", False), ("window-resized", False), ("sequence", False),
    ],
)  # fmt: skip
def test_which_schemes_keep_an_offset_on_a_larger_map(name, kept):
    torch.manual_seed(0)
    position = MAP_POSITIONS[name].make(SIZES)
    before = logits_between(position, SIZES.shape, PAIRS[:1])
    after = logits_between(position, (9, 12), PAIRS[:1])
    assert torch.allclose(before, after, atol=1e-5) == kept


def test_every_scheme_has_a_title_of_its_own():
    titles = [scheme.title for scheme in MAP_POSITIONS.values()]
    assert len(set(titles)) == len(titles)
