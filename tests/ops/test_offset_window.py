"""The window outside which tables are constant, and the gradient of what is read through it."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relpos import OffsetTable
from relpos.offsets import rows_at
from relpos.ops.offset_window import OffsetWindow, table_gradient

Beyond = Literal["clamp", "zero"]
beyonds = st.sampled_from(["clamp", "zero"])


@settings(deadline=None)
@given(
    tables=st.lists(st.tuples(st.integers(-9, 9), st.integers(2, 7), beyonds), min_size=1),
)
def test_no_table_changes_outside_the_window_and_one_does_at_each_edge(
    tables: list[tuple[int, int, Beyond]],
):
    made = [
        OffsetTable(torch.arange(1.0, 1 + rows)[None], first, beyond)
        for first, rows, beyond in tables
    ]
    window = OffsetWindow.of(made)
    assert window is not None
    below = [rows_at(table, window.low - 3, window.low + 1)[0] for table in made]
    above = [rows_at(table, window.high - 1, window.high + 3)[0] for table in made]
    assert all((row[:4] == row[0]).all() for row in below)
    assert all((row[1:] == row[-1]).all() for row in above)
    if window.low < window.high:
        assert any(row[-1] != row[0] for row in below)
        assert any(row[0] != row[-1] for row in above)


def test_without_tables_there_is_no_window():
    assert OffsetWindow.of([]) is None


@pytest.mark.parametrize(
    ("offsets", "cut"),
    [((-9, 9), (-2, 4)), ((0, 9), (0, 4)), ((-9, -1), (-2, -1)), ((7, 9), (7, 7))],
)
def test_a_window_is_cut_to_the_offsets_of_a_call(offsets: tuple[int, int], cut: tuple[int, int]):
    assert OffsetWindow(-2, 4).cut(*offsets) == OffsetWindow(*cut)


@settings(deadline=None)
@given(
    first=st.integers(-6, 6), rows=st.integers(1, 5), beyond=beyonds, begin=st.integers(-12, 12),
    count=st.integers(1, 9), width=st.sampled_from([(), (3,)]),
)  # fmt: skip
def test_the_gradient_of_a_table_is_that_of_the_rows_that_were_read(
    first: int, rows: int, beyond: Beyond, begin: int, count: int, width: tuple[int, ...]
):
    leaf = torch.randn(2, rows, *width, dtype=torch.float64, requires_grad=True)
    table = OffsetTable(leaf, first, beyond)
    read = rows_at(table, begin, begin + count - 1)
    gradient = torch.randn_like(read)
    (want,) = torch.autograd.grad(read, leaf, gradient)
    torch.testing.assert_close(table_gradient(gradient, table, begin), want)
