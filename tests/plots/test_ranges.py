"""A square is filled where a query sees a key, and the picture in the documents is this one."""

import numpy as np
import pytest
import torch

from relpos import chunk_ranges
from relpos.plots import ranges_figure
from tests.plots.committed import assert_committed


def drawn(axes) -> np.ndarray:
    """What a panel shows, `(queries, keys)`."""
    return axes.collections[0].get_array().astype(bool)


def test_a_square_is_filled_where_the_query_sees_the_key():
    ranges = torch.tensor([[[0, 1], [3, 2], [1, 4], [-2, 9]], [[0, 4]] * 4])
    (axes,) = ranges_figure(4, {"any": ranges}).axes
    assert drawn(axes).tolist() == [
        [True, False, False, False],
        [False] * 4,
        [False, True, True, True],
        [True] * 4,
    ]


@pytest.mark.parametrize("length", [4, 12, 32])
def test_the_usual_panels_are_what_their_titles_say(length: int):
    panels = {axes.get_title(): drawn(axes) for axes in ranges_figure(length).axes}
    window, chunks, ahead, prefix, padding, both = panels.values()
    at = np.arange(length)
    back = at[:, None] - at
    assert np.array_equal(window, (back >= 0) & (back <= length // 3))
    chunk = at // (length // 4)
    before = chunk[:, None] - chunk
    assert np.array_equal(chunks, (before >= 0) & (before <= 1))
    assert np.array_equal(ahead, (before >= -1) & (before <= 1))
    assert np.array_equal(prefix, (back >= 0) | (at < length // 3))
    assert np.array_equal(padding, np.broadcast_to(at < length - length // 4, padding.shape))
    assert np.array_equal(both, chunks & padding)


def test_four_panels_take_two_lines_and_leave_no_empty_one():
    panels = {str(n): chunk_ranges(6, 2, n) for n in range(4)}
    assert len(ranges_figure(6, panels).axes) == 4


@pytest.mark.no_typecheck
@pytest.mark.parametrize("length", [0, 3, 33, 4.0, True])
def test_lengths_that_cannot_be_read_are_refused(length):
    with pytest.raises(ValueError, match="ranges_figure: length must be "):
        ranges_figure(length)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (
            {"a": chunk_ranges(5, 2, 1)},
            r"ranges\['a'\] must be \(b, i, 2\) with i=6, got \(1, 5, 2\)",
        ),
        ({"a": chunk_ranges(6, 2, 1)[0]}, r"ranges\['a'\] must be .*, got \(6, 2\)"),
        ({"a": chunk_ranges(6, 2, 1)[:0]}, r"ranges\['a'\] must have a batch entry .*\(0, 6, 2\)"),
        (
            {"a": chunk_ranges(6, 2, 1).float()},
            r"ranges\['a'\] must be integers, got torch.float32",
        ),
        ({"a": [[0, 6]] * 6}, r"ranges\['a'\] must be a tensor, got list"),
        (chunk_ranges(6, 2, 1), "ranges must be some ranges by their titles, got Tensor"),
        ({}, r"ranges must be some ranges by their titles, got {}"),
    ],
)
def test_ranges_that_cannot_be_drawn_are_named(ranges, message: str):
    with pytest.raises((ValueError, TypeError), match=f"^ranges_figure: {message}"):
        ranges_figure(6, ranges)


def test_the_picture_in_the_documents_is_the_one_that_is_drawn_now():
    assert_committed("ranges.svg", ranges_figure())
