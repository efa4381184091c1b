"""Integer maps from pairs and offsets to rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relpos import OffsetTable
from relpos.offsets import call_offsets, deberta_buckets, offsets, row_indices, rows_at, t5_buckets


@pytest.mark.parametrize(("i", "j"), [(1, 1), (3, 5), (5, 3)])
def test_the_queries_are_the_last_positions(i: int, j: int):
    at = offsets(i, j)
    assert all(at[a, c] == c - (j - i + a) for a in range(i) for c in range(j))


def test_query_start_moves_the_queries():
    assert torch.equal(offsets(2, 3, query_start=0), torch.tensor([[0, 1, 2], [-1, 0, 1]]))


def test_clipping_at_k_has_2k_plus_1_rows():
    """TRAPS 5: a walk-through of Shaw et al. (2018) calls the last row `k - 1`; it is row `2k`."""
    rows, _ = row_indices(OffsetTable(torch.zeros(1, 7, 2), first=-3), offsets(10, 10))
    assert rows[0].tolist() == [3, 4, 5, 6, 6, 6, 6, 6, 6, 6]
    assert sorted(set(rows.flatten().tolist())) == list(range(7))


def test_only_a_zero_table_says_where_it_counts():
    at = torch.arange(-3, 4)
    assert row_indices(OffsetTable(torch.zeros(1, 2), 0), at)[1] is None
    inside = row_indices(OffsetTable(torch.zeros(1, 2), 0, "zero"), at)[1]
    assert inside is not None
    assert inside.tolist() == [False, False, False, True, True, False, False]


@settings(deadline=None)
@given(
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    query_start=st.integers(-5, 9),
    causal=st.booleans(),
)
def test_every_pair_that_takes_part_has_an_offset_of_the_call(
    queries: int, keys: int, query_start: int, causal: bool
):
    found = {j - query_start - i for i in range(queries) for j in range(keys)}
    found = {offset for offset in found if not causal or offset <= 0}
    first, last = call_offsets(query_start, queries, keys, causal=causal)
    if found:
        assert (min(found), max(found)) == (first, last)


@pytest.mark.parametrize(
    ("start", "i", "j", "causal", "want"),
    [
        (4, 3, 7, False, (-6, 2)),
        (4, 3, 7, True, (-6, 0)),
        (20, 3, 7, True, (-22, -14)),
        (-9, 3, 7, False, (7, 15)),
        (-9, 3, 7, True, (7, 7)),
        (0, 0, 0, False, (1, 1)),
        (5, 0, 5, True, (-4, -1)),
    ],
)
def test_offsets_are_those_between_the_first_and_the_last(start, i, j, causal, want):
    assert call_offsets(start, i, j, causal=causal) == want


@pytest.mark.parametrize("beyond", ["clamp", "zero"])
def test_rows_at_reads_vectors_and_scalars_alike(beyond):
    vectors = torch.randn(2, 4, 3)
    both = rows_at(OffsetTable(vectors, -1, beyond), -3, 5)
    one = rows_at(OffsetTable(vectors[..., 0], -1, beyond), -3, 5)
    assert both.shape == (2, 9, 3)
    assert torch.equal(both[..., 0], one)
    assert torch.equal(both[:, 2:6], vectors)
    assert torch.equal(both[:, 0], vectors[:, 0] if beyond == "clamp" else torch.zeros(2, 3))


def exact_bucket(distance: int, side: int, max_distance: int) -> int:
    """T5's bucket in integers: the logarithms' inequality as one of powers."""
    exact = side // 2
    if distance < exact:
        return distance
    far = 0
    for step in range(1, side - exact):
        if max_distance**step * exact ** (side - exact) <= distance ** (side - exact) * exact**step:
            far = step
    return exact + far


@pytest.mark.parametrize("side", [2, 3, 4, 8, 16, 32, 33])
@pytest.mark.parametrize("max_distance", [20, 64, 128, 200, 256, 800])
def test_t5_buckets_are_those_of_exact_arithmetic(side: int, max_distance: int):
    reach = max_distance + 3
    want = [exact_bucket(n, side, max_distance) for n in range(reach + 1)]
    at = torch.arange(-reach, reach + 1)
    behind = t5_buckets(at, side, max_distance, bidirectional=False).tolist()
    assert behind == [*reversed(want), *[0] * reach]
    both = t5_buckets(at, 2 * side, max_distance).tolist()
    assert both == [*reversed(want), *(side + bucket for bucket in want[1:])]


def test_t5_buckets_widen_where_the_paper_says():
    """Raffel et al. 2020, section 2.1: up to an offset of 128, beyond which all share one."""
    edges = t5_buckets(-torch.arange(130)).diff().nonzero().flatten() + 1
    assert edges.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]


@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(4, 9), (6, 20), (18, 26), (20, 81), (32, 129), (256, 512)]
)
def test_deberta_buckets_are_those_of_exact_arithmetic(buckets: int, max_distance: int):
    """Also where a power is whole, 32 = 16 * 8^(1/3), and logarithms round to either side."""
    middle = buckets // 2
    at = torch.arange(-3 * max_distance, 3 * max_distance + 1)

    def steps(distance: int) -> int:
        if distance <= middle:
            return distance
        # The least t with (distance / middle)^(middle - 1) <= ((max_distance - 1) / middle)^t.
        t, left, right = 0, distance ** (middle - 1), middle ** (middle - 1)
        while left > right:
            t, left, right = t + 1, left * middle, right * (max_distance - 1)
        return middle + t

    want = [
        min(max(buckets - (1 if o > 0 else -1) * steps(abs(o)), 0), 2 * buckets - 1)
        for o in at.tolist()
    ]
    got = deberta_buckets(at, max_distance=max_distance, buckets=buckets)
    assert got.tolist() == want
