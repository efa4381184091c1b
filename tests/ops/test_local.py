"""Windows, ranges of keys and caps of scores: what they mean, and that the rest is never read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from relpos import (
    GridTerms,
    OffsetTable,
    Terms,
    attention,
    chunk_ranges,
    merge,
    padding_ranges,
)
from tests.ops.agreement import assert_agrees
from tests.ops.backends import DTYPES, every_backend, every_blockwise
from tests.ops.cases import CASES, Case
from tests.ops.grid_cases import GRID_CASES
from tests.ops.test_meaning import assert_same_with

LOCAL = {name: case for name, case in CASES.items() if case.window or case.ranges}


def visible_pairs(case: Case, named: dict[str, Tensor]) -> Tensor:
    """`(b or 1, 1, i, j)`: True where window and range let a pair take part, written out."""
    start = case.keys - case.queries if case.query_start is None else case.query_start
    offset = torch.arange(case.keys) - (start + torch.arange(case.queries))[:, None]
    left, right = case.window or (None, None)
    seen = torch.ones(1, 1, case.queries, case.keys, dtype=torch.bool)
    if left is not None:
        seen = seen & (offset >= -left)
    if right is not None:
        seen = seen & (offset <= right)
    if "key_ranges" in named:
        first, end = named["key_ranges"][:, None, :, None].unbind(-1)
        seen = seen & (torch.arange(case.keys) >= first) & (torch.arange(case.keys) < end)
    return seen


@pytest.mark.parametrize("name", [name for name, case in LOCAL.items() if case.mask is None])
@every_backend
def test_a_window_and_a_range_are_the_masks_of_their_pairs(backend: str, name: str):
    case = LOCAL[name]
    named = case.inputs(dtype=DTYPES[backend])
    masked = replace(case, window=None, ranges=None)
    by_mask = {key: x for key, x in named.items() if key != "key_ranges"}
    by_mask["mask"] = visible_pairs(case, named)
    assert_agrees(case.run(named, backend), masked.run(by_mask, backend))
    assert_agrees(case.gradients(named, backend), masked.gradients(by_mask, backend))


@every_backend
@pytest.mark.parametrize("query_start", [None, -7, 50])
def test_a_window_that_ends_at_the_query_is_causal(backend: str, query_start: int | None):
    case = replace(CASES["plain"], terms="keys values", query_start=query_start)
    named = case.inputs(dtype=DTYPES[backend])
    causal = case.run(named, backend, causal=True)
    assert_agrees(case.run(named, backend, window=(None, 0)), causal)
    assert_agrees(case.run(named, backend, window=(9, 5), causal=True),
                  case.run(named, backend, window=(9, 0)))  # fmt: skip


@every_backend
def test_a_window_as_long_as_the_sequence_hides_nothing(backend: str):
    case = CASES["per head"]
    named = case.inputs(dtype=DTYPES[backend])
    whole = case.run(named, backend)
    for window in [(32, 32), (None, None), (10**9, None)]:
        assert_agrees(case.run(named, backend, window=window), whole)


@every_backend
def test_documents_that_follow_each_other_are_ranges(backend: str):
    case = CASES["per head"]
    named = case.inputs(dtype=DTYPES[backend])
    documents = (torch.arange(case.keys) // 10).expand(case.batch, -1)
    by_ranges = case.run(named, backend, key_ranges=chunk_ranges(case.keys, 10, left_chunks=0))
    assert_agrees(by_ranges, case.run(named, backend, documents=documents))


@every_backend
def test_two_windows_side_by_side_merge_to_one(backend: str):
    case = CASES["all offsets"]
    named = case.inputs(dtype=DTYPES[backend])
    left = case.run(named, backend, window=(9, 2))
    ahead = torch.arange(case.queries) + 3
    ranges = torch.stack([ahead, ahead + 5], -1).unsqueeze(0)
    right = case.run(named, backend, key_ranges=ranges)
    assert_agrees(merge(*zip(left, right, strict=True)), case.run(named, backend, window=(9, 7)))


@every_backend
@pytest.mark.parametrize("name", ["window", "rows, window", "window, space"])
def test_a_window_of_an_axis_is_its_ranges(backend: str, name: str):
    case = GRID_CASES[name]
    named, windows = case.inputs(dtype=DTYPES[backend]), case.window
    assert windows is not None
    ranges = [
        None if window is None else around(size, *window)
        for size, window in zip(case.shape, windows, strict=True)
    ]
    other = replace(case, window=None)
    local = {"key_ranges": ranges}
    assert_agrees(other.run(named, backend, **local), case.run(named, backend))
    assert_agrees(other.gradients(named, backend, **local), case.gradients(named, backend))


def around(size: int, left: int | None, right: int | None) -> Tensor:
    at = torch.arange(size)
    first = torch.zeros_like(at) if left is None else at - left
    return torch.stack([first, torch.full_like(at, size) if right is None else at + right + 1], -1)[
        None
    ]


@every_backend
def test_ranges_of_axes_without_any_limit_hide_nothing(backend: str):
    case = GRID_CASES["plane"]
    named = case.inputs(dtype=DTYPES[backend])
    whole = case.run(named, backend)
    whole_axis = chunk_ranges(5, 5, 0)
    for ranges in ([None, None], [chunk_ranges(5, 9, 0), None], [whole_axis.int(), None]):
        assert_agrees(case.run(named, backend, key_ranges=ranges), whole)


@every_backend
def test_no_sequences_have_ranges_of_axes(backend: str):
    q = torch.zeros(0, 2, 6, 4, dtype=DTYPES[backend])
    none = torch.zeros(0, 2, 2, dtype=torch.int64)
    for ranges in ([none, None], [none, chunk_ranges(3, 2, 0)], [none, none.new_zeros(0, 3, 2)]):
        out = attention(q, q, q, GridTerms((2, 3)), key_ranges=ranges, backend=backend)
        assert out.shape == q.shape


@every_backend
def test_images_of_several_sizes_are_padded_without_a_mask(backend: str):
    case = replace(GRID_CASES["plane"], batch=2, shape=(4, 5))
    named = case.inputs(dtype=DTYPES[backend])
    heights, widths = torch.tensor([4, 2]), torch.tensor([3, 5])
    ranges = [padding_ranges(heights, 4), padding_ranges(widths, 5)]
    inside = (torch.arange(4) < heights[:, None])[:, :, None] & (torch.arange(5) < widths[:, None])[
        :, None
    ]
    mask = inside.flatten(1)[:, None, None]
    local = {"key_ranges": ranges}
    assert_agrees(case.run(named, backend, **local), case.run(named, backend, mask=mask))
    assert_agrees(
        case.gradients(named, backend, **local), case.gradients(named, backend, mask=mask)
    )


@every_blockwise
@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((3, 300), ((1, 1), (5, 9))),
        ((5, 130), (None, (70, 0))),
        ((2, 3, 200), (None, (0, 1), (9, 9))),
    ],
    ids=["short lines", "half of each line", "three axes"],
)
def test_a_window_in_wide_lines_is_its_mask(backend: str, shape, window, prefix: int):
    # Without a bias, whose gradient is a sum over so many pairs that it has few digits.
    case = replace(
        GRID_CASES["plane"], shape=shape, window=window, prefix=prefix, terms="keys values"
    )
    named = case.inputs(dtype=DTYPES[backend])
    wide = {name: x.double() for name, x in named.items()}
    assert_agrees(case.results(named, backend), case.results(wide, "reference"))


# ---- what is never read --------------------------------------------------------------------------


@every_blockwise
@pytest.mark.parametrize("poison", [torch.nan, torch.inf], ids=str)
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize(
    "case",
    [
        replace(CASES["window, several row blocks"], window=(70, 20)),
        replace(CASES["window"], queries=40, keys=400, query_start=200),
        replace(CASES["window, one query"], keys=600),
        replace(CASES["plain"], queries=1024, keys=2400, batch=1, ranges="chunks", query_start=0),
    ],
    ids=["before the window", "around the window", "one query", "apart from the ranges"],
)
def test_keys_that_no_query_reaches_are_never_read(
    backend: str, case: Case, which: str, poison: float
):
    named = case.inputs(dtype=DTYPES[backend])
    if case.ranges:  # the first half of the queries sees keys at the start, the rest at the end
        early = torch.arange(case.queries) < case.queries // 2
        first = torch.where(early, torch.arange(case.queries), case.keys - 100)
        named["key_ranges"] = torch.stack([first, first + 90], -1).unsqueeze(0)
    hidden = ~visible_pairs(case, named).any(2)[..., None]
    assert hidden.any()
    assert_same_with(
        case, backend, named, named | {which: named[which].masked_fill(hidden, poison)}
    )


@every_blockwise
def test_rows_of_tables_beyond_a_window_are_never_read(backend: str):
    case = replace(CASES["window, several row blocks"], table_window=(64, 64), window=(20, 9))
    named = case.inputs(dtype=DTYPES[backend])
    poisoned = {name: tensor.clone() for name, tensor in named.items()}
    for name, table in case.tables(named).items():
        offset = table.first + torch.arange(named[name].shape[1])
        poisoned[name][:, (offset < -20) | (offset > 9)] = torch.nan
    assert_same_with(case, backend, named, poisoned)


@every_blockwise
@pytest.mark.parametrize("which", ["k", "v"])
def test_lines_of_a_grid_beyond_every_window_are_never_read(backend: str, which: str):
    """Only the queries of the first lines see any key, so that the last lines are nobody's."""
    shape, seen = (80, 16), 32  # lines, of 16 tokens each
    # But in native the logits of a table of queries are made of all keys at once.
    terms = "keys queries bias values" if backend == "native" else "keys bias values"
    case = replace(GRID_CASES["plane"], shape=shape, terms=terms, window=((2, 2), (3, 3)))
    named = case.inputs(dtype=DTYPES[backend])
    sees = torch.arange(80 * 16) < seen * 16
    named["key_ranges"] = torch.stack([torch.zeros(80 * 16).long(), 80 * 16 * sees], -1)[None]
    poisoned = named | {which: named[which].clone()}
    poisoned[which][:, :, (seen + 2) * 16 :] = torch.nan
    assert_same_with(case, backend, named, poisoned)


@every_blockwise
@pytest.mark.parametrize("which", ["k", "v"])
def test_lines_of_a_grid_in_no_range_are_never_read(backend: str, which: str):
    """All queries see some of the first 20 lines of 16 tokens, and none of the others."""
    case = replace(GRID_CASES["plane"], shape=(40, 16), terms="keys bias values", axis_ranges="any")
    named = case.inputs(dtype=DTYPES[backend])
    first = torch.arange(40).clamp(max=20) - 2
    of_lines = torch.stack([first, (first + 5).clamp(max=20)], -1)[None]
    named |= {"axis_ranges0": of_lines, "axis_ranges1": chunk_ranges(16, 4, 1)}
    poisoned = named | {which: named[which].clone()}
    poisoned[which][:, :, 20 * 16 :] = torch.nan
    assert_same_with(case, backend, named, poisoned)


# ---- caps ----------------------------------------------------------------------------------------


@every_backend
def test_no_score_is_beyond_its_cap(backend: str):
    q = 100 * torch.randn(1, 2, 20, 8, dtype=DTYPES[backend])
    lse = attention(q, q, q, softcap=3.0, backend=backend, return_lse=True)[1]
    assert (lse <= 3 + torch.tensor(20.0).log() + 1e-5).all()
    assert (lse >= -3).all()


@every_backend
@pytest.mark.parametrize("name", ["per head", "additive", "causal"])
def test_a_high_cap_changes_nothing(backend: str, name: str):
    case = CASES[name]
    named = case.inputs(dtype=DTYPES[backend])
    assert_agrees(case.run(named, backend, softcap=1e9), case.run(named, backend))


@every_backend
@pytest.mark.parametrize("softcap", [1e-20, 1e20])
def test_the_least_and_the_highest_cap_give_finite_gradients(backend: str, softcap: float):
    case = CASES["causal"]
    named = case.inputs(dtype=DTYPES[backend])
    wide = case.inputs()
    found = case.results(named, backend, softcap=softcap)
    assert_agrees(found, case.results(wide, "reference", softcap=softcap))


@every_backend
def test_the_cap_is_around_the_terms_and_inside_the_mask(backend: str):
    q = torch.zeros(1, 1, 2, 4, dtype=DTYPES[backend])
    bias = OffsetTable(torch.tensor([[50.0, 0, 50]], dtype=q.dtype), first=-1)
    mask = torch.tensor([[0.0, 5], [0, 0]], dtype=q.dtype)
    lse = attention(q, q, q, Terms(bias=bias), softcap=2.0, mask=mask, backend=backend,
                    return_lse=True)[1]  # fmt: skip
    capped = 2 * torch.tensor(25.0, dtype=q.dtype).tanh()
    zero = torch.zeros((), dtype=q.dtype)
    wanted = torch.stack([torch.logaddexp(zero, capped + 5), torch.logaddexp(capped, zero)])
    assert_agrees(lse[0, 0], wanted)
