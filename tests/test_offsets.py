"""Integer maps from pairs and offsets to rows."""

from __future__ import annotations

import pytest
import torch

from relpos import OffsetTable
from relpos.offsets import offsets, rows_at, table_rows


@pytest.mark.parametrize(("i", "j"), [(1, 1), (3, 5), (5, 3)])
def test_the_queries_are_the_last_positions(i: int, j: int):
    at = offsets(i, j)
    assert all(at[a, c] == c - (j - i + a) for a in range(i) for c in range(j))


def test_query_start_moves_the_queries():
    assert torch.equal(offsets(2, 3, query_start=0), torch.tensor([[0, 1, 2], [-1, 0, 1]]))


def test_clipping_at_k_has_2k_plus_1_rows():
    """TRAPS 5: seed 003 calls the last row `k - 1`; it is row `2k`."""
    rows, _ = table_rows(OffsetTable(torch.zeros(1, 7, 2), first=-3), offsets(10, 10))
    assert rows[0].tolist() == [3, 4, 5, 6, 6, 6, 6, 6, 6, 6]
    assert sorted(set(rows.flatten().tolist())) == list(range(7))


def test_only_a_zero_table_says_where_it_counts():
    at = torch.arange(-3, 4)
    assert table_rows(OffsetTable(torch.zeros(1, 2), 0), at)[1] is None
    inside = table_rows(OffsetTable(torch.zeros(1, 2), 0, "zero"), at)[1]
    assert inside is not None
    assert inside.tolist() == [False, False, False, True, True, False, False]


@pytest.mark.parametrize("beyond", ["clamp", "zero"])
def test_rows_at_reads_vectors_and_scalars_alike(beyond):
    vectors = torch.randn(2, 4, 3)
    both = rows_at(OffsetTable(vectors, -1, beyond), -3, 5)
    one = rows_at(OffsetTable(vectors[..., 0], -1, beyond), -3, 5)
    assert both.shape == (2, 9, 3)
    assert torch.equal(both[..., 0], one)
    assert torch.equal(both[:, 2:6], vectors)
    assert torch.equal(both[:, 0], vectors[:, 0] if beyond == "clamp" else torch.zeros(2, 3))
