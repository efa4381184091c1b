"""Ranges of keys: chunks, prefixes and padding, each against its mask written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import relpos
from relpos import (
    chunk_ranges,
    intersect_ranges,
    neighborhood_ranges,
    padding_ranges,
    prefix_ranges,
)


def mask_of(ranges: Tensor, keys: int) -> Tensor:
    """`(b or 1, i, j)`: True where a key is in a query's range."""
    first, end = ranges[..., None].unbind(2)
    return (torch.arange(keys) >= first) & (torch.arange(keys) < end)


@pytest.mark.parametrize("right", [0, 1, 2, None])
@pytest.mark.parametrize("left", [0, 1, 3, None])
@pytest.mark.parametrize(("length", "size"), [(1, 4), (8, 4), (33, 5), (7, 9)])
def test_a_query_sees_the_chunks_around_its_own(
    length: int, size: int, left: int | None, right: int | None
):
    chunk = torch.arange(length) // size
    between = chunk - chunk[:, None]  # from the query's chunk to the key's
    left_most, right_most = (length if count is None else count for count in (left, right))
    wanted = (between <= right_most) & (between >= -left_most)
    ranges = chunk_ranges(length, size, left, right)
    assert torch.equal(mask_of(ranges, length)[0], wanted)
    assert ranges.dtype == torch.int64
    assert ranges.min() >= 0
    assert ranges.max() <= length


@pytest.mark.parametrize(("length", "size"), [(1, 1), (1, 3), (4, 4), (6, 9), (9, 3), (9, 4)])
def test_a_neighbourhood_has_as_many_tokens_and_the_nearest(length: int, size: int):
    ranges = neighborhood_ranges(length, size)
    for query, (first, end) in enumerate(ranges[0].tolist()):
        assert end - first == min(size, length)
        # All that begin inside and have the query in them; of these the one around it.
        starts = range(length - (end - first) + 1)
        assert first == min(starts, key=lambda start: abs(start + size // 2 - query))
        assert first <= query < end


@pytest.mark.parametrize(("length", "size", "stride"), [(12, 4, 4), (11, 4, 4), (10, 5, 2)])
def test_queries_of_a_stride_share_the_neighbourhood_of_the_middle_one(length, size, stride):
    each, shared = neighborhood_ranges(length, size), neighborhood_ranges(length, size, stride)
    for query in range(length):
        middle = min(query // stride * stride + stride // 2, length - 1)
        assert torch.equal(shared[:, query], each[:, middle])
    if stride == size and not length % size:
        assert torch.equal(shared, chunk_ranges(length, size, left_chunks=0))


@pytest.mark.parametrize(("length", "size"), [(1, 1), (7, 3), (3, 7)])
def test_a_causal_neighbourhood_is_a_window(length: int, size: int):
    offset = torch.arange(length) - torch.arange(length)[:, None]
    ranges = neighborhood_ranges(length, size, causal=True)
    assert torch.equal(mask_of(ranges, length)[0], (offset <= 0) & (offset > -size))
    strided = mask_of(neighborhood_ranges(length, size, min(2, size), causal=True), length)[0]
    last = (torch.arange(length) // 2 * 2 + 1).clamp(max=length - 1)
    if size > 1:
        behind = last[:, None] - torch.arange(length) < size
        assert torch.equal(strided, (offset <= 0) & behind)


@pytest.mark.parametrize("length", [1, 8])
def test_a_query_sees_the_prefix_and_what_is_not_ahead(length: int):
    prefixes = torch.tensor([0, 1, 3, 20])
    at = torch.arange(length)
    causal = at <= at[:, None]
    wanted = causal | (at < prefixes[:, None, None])
    assert torch.equal(mask_of(prefix_ranges(prefixes, length), length), wanted)
    for number, prefix in enumerate(prefixes.tolist()):
        assert torch.equal(
            prefix_ranges(prefix, length)[0], prefix_ranges(prefixes, length)[number]
        )


@pytest.mark.parametrize("queries", [None, 2])
def test_a_query_sees_no_padding_on_either_side(queries: int | None):
    lengths = torch.tensor([5, 0, 3])
    at = torch.arange(5)
    right = mask_of(padding_ranges(lengths, queries=queries), 5)
    left = mask_of(padding_ranges(lengths, queries=queries, side="left"), 5)
    assert right.shape == (3, 5 if queries is None else queries, 5)
    assert torch.equal(right, (at < lengths[:, None, None]).expand_as(right))
    assert torch.equal(left, (at >= 5 - lengths[:, None, None]).expand_as(left))
    assert mask_of(padding_ranges(lengths, 7), 7).shape == (3, 7, 7)


def test_a_prefix_is_made_where_it_is_asked_for():
    assert prefix_ranges(2, 4, device="meta").device.type == "meta"
    assert neighborhood_ranges(4, 2, device="meta").device.type == "meta"
    assert prefix_ranges(torch.tensor([2]), 4, device="meta").device.type == "meta"
    assert prefix_ranges(torch.tensor([2], device="meta"), 4).device.type == "meta"


def test_what_several_ranges_have_in_common_is_the_product_of_their_masks():
    lengths = torch.tensor([9, 4, 0])
    parts = [chunk_ranges(9, 2, 1), padding_ranges(lengths, 9), prefix_ranges(3, 9)]
    both = mask_of(intersect_ranges(*parts), 9)
    wanted = torch.ones(3, 9, 9, dtype=torch.bool)
    for part in parts:
        wanted = wanted & mask_of(part, 9)
    assert torch.equal(both, wanted)


def test_every_helper_is_public():
    kinds = ("chunk", "intersect", "neighborhood", "padding", "prefix")
    assert {f"{kind}_ranges" for kind in kinds} <= set(relpos.__all__)


def test_numbers_beyond_all_lengths_are_all():
    assert torch.equal(chunk_ranges(5, 2**59, 2**59, 2**59), chunk_ranges(5, 5, None, None))
    assert torch.equal(neighborhood_ranges(5, 2**59, 2**59), chunk_ranges(5, 5, 0))


def test_no_length_gives_no_ranges():
    assert padding_ranges(torch.zeros(0, dtype=torch.long)).shape == (0, 0, 2)
    assert padding_ranges(torch.tensor([0, 0])).shape == (2, 0, 2)
    assert chunk_ranges(0, 4, left_chunks=1).shape == (1, 0, 2)
    assert neighborhood_ranges(0, 4).shape == (1, 0, 2)
    assert prefix_ranges(torch.tensor([0, 3]), 0).shape == (2, 0, 2)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: chunk_ranges(-1, 2, 1), "chunk_ranges: length must be an integer >= 0, got -1"),
        (lambda: chunk_ranges(4, 0, 1), "chunk_ranges: size must be an integer >= 1, got 0"),
        (lambda: chunk_ranges(4, 2, -1), "chunk_ranges: left_chunks must be an integer >= 0"),
        (lambda: chunk_ranges(4, 2, 1, 0.5), "chunk_ranges: right_chunks must be an integer >= 0"),
        (lambda: neighborhood_ranges(4, 0), "neighborhood_ranges: size must be .* >= 1, got 0"),
        (
            lambda: neighborhood_ranges(4, 2, 3),
            "neighborhood_ranges: stride must be at most size=2, got 3",
        ),
        (lambda: neighborhood_ranges(4, 2, causal=1), "causal must be True or False, got 1"),
        (lambda: prefix_ranges(-1, 4), "prefix_ranges: prefix must be an integer >= 0, got -1"),
        (
            lambda: prefix_ranges(torch.tensor([2, -1]), 4),
            r"prefix_ranges: prefix must be at least 0, got \[2, -1\]",
        ),
        (
            lambda: padding_ranges(torch.ones(2, device="meta").long()),
            "padding_ranges: length must be given with lengths on meta, got None",
        ),
        (lambda: prefix_ranges(torch.ones(2), 4), "prefix_ranges: prefix must be integers"),
        (lambda: prefix_ranges(torch.ones(2, 2).long(), 4), r"prefix must be \(b\), got"),
        (lambda: padding_ranges(torch.tensor([3]), 2), r"lengths must be in 0..2, got \[3\]"),
        (lambda: padding_ranges(torch.tensor([-1])), r"padding_ranges: length"),
        (lambda: padding_ranges([1, 2]), "padding_ranges: lengths must be a tensor, got list"),
        (
            lambda: padding_ranges(torch.tensor([1]), side="up"),
            "padding_ranges: side must be 'left' or 'right', got 'up'",
        ),
        (intersect_ranges, "intersect_ranges: ranges must be at least one, got none"),
        (
            lambda: intersect_ranges(chunk_ranges(4, 2, 1), chunk_ranges(5, 2, 1)),
            r"ranges\[1\] must be \(b, i, 2\) with i=4.*got \(1, 5, 2\)",
        ),
        (
            lambda: intersect_ranges(torch.zeros(2, 4, 2).long(), torch.zeros(3, 4, 2).long()),
            r"ranges\[1\] must be \(b, i, 2\) with b in \(1, 2\).*got \(3, 4, 2\)",
        ),
        (
            lambda: intersect_ranges(chunk_ranges(4, 2, 1)[0]),
            r"ranges\[0\] must be \(b, i, 2\), got \(4, 2\)",
        ),
        (
            lambda: intersect_ranges(chunk_ranges(4, 2, 1), chunk_ranges(4, 2, 1, device="meta")),
            r"ranges\[1\] must be on cpu as ranges\[0\] is, got meta",
        ),
    ],
)
def test_wrong_arguments_are_named(make, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
