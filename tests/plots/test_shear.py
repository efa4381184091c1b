"""What the picture of the shear shows is what the functions do."""

import re

import numpy as np
import pytest
import torch
from matplotlib.patches import Polygon, Rectangle
from torch.nn.functional import pad

from relpos import relative_to_absolute, skew
from relpos.plots import shear_figure, shear_steps
from tests.plots.committed import assert_committed

LENGTHS = [1, 2, 3, 4, 6, 33]


def scores(length):
    """Numbers that tell query and offset: the score of each is unlike any other."""
    torch.manual_seed(0)
    return torch.randn(length, 2 * length - 1)


def taken(from_scores, cells):
    """The scores that the labels of some cells stand for; 0 is padding."""
    length = len(from_scores)
    query, offset = torch.from_numpy(cells).unbind(-1)
    return from_scores[query, offset + length - 1].where(query >= 0, 0)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_step_holds_what_the_functions_return(length):
    steps, x = shear_steps(length), scores(length)
    assert torch.equal(taken(x, steps.by_offset), x)
    assert torch.equal(taken(x, steps.line), x.flatten())
    assert torch.equal(taken(x, steps.by_key), relative_to_absolute(x))
    padded = pad(x[:, :length], (1, 0))
    assert torch.equal(taken(x, steps.padded), padded)
    assert torch.equal(taken(x, steps.reshaped), padded.reshape(length + 1, length))
    assert torch.equal(taken(x, steps.huang), padded.reshape(length + 1, length)[1:])


@pytest.mark.parametrize("length", LENGTHS)
def test_offsets_by_key_are_key_minus_query(length):
    at = np.arange(length)
    query, offset = np.moveaxis(shear_steps(length).by_key, -1, 0)
    np.testing.assert_array_equal(offset, at - at[:, None])
    np.testing.assert_array_equal(query, np.broadcast_to(at[:, None], query.shape))


@pytest.mark.parametrize("length", LENGTHS)
def test_the_frames_begin_one_place_earlier_in_each_row(length):
    steps = shear_steps(length)
    width = 2 * length - 1
    places = [start - row * width for row, start in enumerate(steps.starts)]
    assert places == [length - 1 - row for row in range(length)]
    for row, start in enumerate(steps.starts):
        np.testing.assert_array_equal(steps.line[start : start + length], steps.by_key[row])
    if length > 1:
        np.testing.assert_array_equal(steps.cut[:, :length], steps.by_key)


@pytest.mark.parametrize("length", LENGTHS)
def test_above_the_diagonal_huangs_skew_holds_padding_and_the_next_querys_scores(length):
    query = shear_steps(length).huang[..., 0]
    for row in range(length):
        assert (query[row, : row + 1] == row).all()
        assert (query[row, row + 1 : row + 2] == -1).all()
        assert (query[row, row + 2 :] == row + 1).all()
    x = scores(length)
    below = torch.ones(length, length).tril().bool()
    drawn = taken(x, shear_steps(length).huang)
    assert torch.equal(drawn[below], skew(x[:, :length])[below])
    if length > 1:
        assert not torch.equal(drawn, relative_to_absolute(x))


def drawn_text(figure, name):
    """Each cell's text by row and column."""
    found = {}
    for text in figure.axes[0].texts:
        if matched := re.fullmatch(rf"{name}-(\d+)-(\d+)-offset", text.get_gid() or ""):
            found[int(matched[1]), int(matched[2])] = text.get_text()
    return found


@pytest.mark.parametrize("length", [3, 4, 6])
def test_the_picture_says_what_the_steps_are(length):
    figure, steps = shear_figure(length), shear_steps(length)
    for name, cells in (
        ("offset", steps.by_offset),
        ("line", steps.line[None]),
        ("key", steps.cut),
        ("padded", steps.padded),
        ("reshaped", steps.reshaped),
        ("huang", steps.huang),
        ("unmasked", steps.huang),
    ):
        texts = drawn_text(figure, name)
        assert len(texts) == cells.shape[0] * cells.shape[1]
        for (row, column), text in texts.items():
            query, offset = cells[row, column]
            said = text.replace("−", "-")  # noqa: RUF001
            assert said == ("pad" if query < 0 else f"{offset:+d}" if offset else "0"), name


def test_a_cells_colour_is_its_query_in_every_step():
    figure, steps = shear_figure(4), shear_steps(4)
    colors = {}
    for patch in figure.axes[0].patches:
        matched = re.fullmatch(r"(huang|unmasked|padded)-(\d+)-(\d+)", patch.get_gid() or "")
        if isinstance(patch, Rectangle) and matched:
            cells = {"padded": steps.padded}.get(matched[1], steps.huang)
            query = int(cells[int(matched[2]), int(matched[3]), 0])
            colors.setdefault(query, set()).add(patch.get_facecolor())
    assert sorted(colors) == [-1, 0, 1, 2, 3]
    assert all(len(found) == 1 for found in colors.values())
    assert len(set.union(*colors.values())) == 5


@pytest.mark.parametrize("length", [3, 4, 6])
def test_the_red_frame_holds_all_above_the_diagonal_and_nothing_else(length):
    axes = shear_figure(length).axes[0]
    (frame,) = (patch for patch in axes.patches if isinstance(patch, Polygon))
    inside = frame.get_path()
    for patch in axes.patches:
        if matched := re.fullmatch(r"unmasked-(\d+)-(\d+)", patch.get_gid() or ""):
            row, column = int(matched[1]), int(matched[2])
            middle = (
                patch.get_x() + patch.get_width() / 2,
                patch.get_y() + patch.get_height() / 2,
            )
            assert inside.contains_point(middle) == (column > row)


def test_under_the_causal_mask_nothing_above_the_diagonal_is_shown():
    texts = drawn_text(shear_figure(5), "masked")
    assert sorted(texts) == [(row, column) for row in range(5) for column in range(row + 1)]


@pytest.mark.no_typecheck
@pytest.mark.parametrize("length", [0, 2, 7, 4.0, True])
def test_lengths_that_cannot_be_read_are_refused(length):
    with pytest.raises(ValueError, match="shear_figure: length must be "):
        shear_figure(length)


def test_the_picture_in_the_documents_is_the_one_that_is_drawn_now():
    assert_committed("shear.svg", shear_figure())
