"""Ranges of keys for `attention(..., key_ranges=...)`: chunks, neighbourhoods, prefixes, padding.

Each is `(b or 1, i, 2)`: query `i` sees the keys `lo..hi-1`. One tensor in `O(L)` says what a mask
says in `i x j`, and what no query of a tile sees is not computed.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Int64, Integer
from torch import Tensor

from .checks import (
    check_count,
    check_device,
    check_flag,
    check_integers,
    check_shape,
    one_line,
)
from .errors import ShapeError

__all__ = [
    "chunk_ranges",
    "intersect_ranges",
    "neighborhood_ranges",
    "padding_ranges",
    "prefix_ranges",
]


def chunk_ranges(
    length: int,
    size: int,
    left_chunks: int | None,
    right_chunks: int | None = 0,
    *,
    device: torch.device | str | None = None,
) -> Int64[Tensor, "1 i 2"]:
    """Each query sees its own chunk, some before it, and some after it.

    So a streaming encoder sees: with `right_chunks=0` its latency is one chunk (Chen et al. 2021,
    section 3; Zhang et al. 2020, section 3.2).

    Args:
        length: number of tokens, queries and keys.
        size: of a chunk, in tokens; the last may be shorter.
        left_chunks: before its own; None: all.
        right_chunks: after its own; None: all.
        device: where the result is made.

    Raises:
        ValueError: if a number is out of range.

    >>> chunk_ranges(5, size=2, left_chunks=1)
    tensor([[[0, 2],
             [0, 2],
             [0, 4],
             [0, 4],
             [2, 5]]])
    """
    length = check_count("chunk_ranges", "length", length, least=0)
    size = check_count("chunk_ranges", "size", size)
    # As many as there are tokens are all, and larger numbers would overflow.
    size = min(size, max(length, 1))
    left, right = (
        length if count is None else min(check_count("chunk_ranges", name, count, least=0), length)
        for name, count in (("left_chunks", left_chunks), ("right_chunks", right_chunks))
    )
    chunk = torch.arange(length, device=device) // size
    first, end = (chunk - left) * size, (chunk + 1 + right) * size
    return torch.stack([first.clamp(min=0), end.clamp(max=length)], -1).unsqueeze(0)


def neighborhood_ranges(
    length: int,
    size: int,
    stride: int = 1,
    *,
    causal: bool = False,
    device: torch.device | str | None = None,
) -> Int64[Tensor, "1 i 2"]:
    """Each query sees the `size` keys around it, at either end the nearest `size`.

    The neighbourhoods move inward there, so that every query sees as many keys (Hassani et al.
    2023, eq. 2 and 3; NATTEN). For a grid, one for each axis:
    `key_ranges=[neighborhood_ranges(height, 7), neighborhood_ranges(width, 7)]`.
    Of an even size, the query is the first of the second half.

    Args:
        length: number of tokens, queries and keys, along the axis.
        size: of a neighbourhood, in tokens; all of them where there are fewer.
        stride: so many queries after each other share the neighbourhood of the one in the middle
            (Hassani et al. 2025); with `stride=size` those are windows without overlap.
        causal: whether each query sees itself and the `size - 1` keys before it instead, fewer at
            the beginning; with a stride, none of those that the last query of its group is too far
            from.
        device: where the result is made.

    Raises:
        ValueError: if a number is out of range, or the stride larger than the neighbourhood.

    >>> neighborhood_ranges(5, size=3)
    tensor([[[0, 3],
             [0, 3],
             [1, 4],
             [2, 5],
             [2, 5]]])
    """
    function = "neighborhood_ranges"
    length = check_count(function, "length", length, least=0)
    size = check_count(function, "size", size)
    stride = check_count(function, "stride", stride)
    check_flag(function, "causal", causal)
    if stride > size:
        raise ValueError(f"{function}: stride must be at most size={size}, got {stride}")
    # As many as there are tokens are all, and larger numbers would overflow.
    size, stride = min(size, max(length, 1)), min(stride, max(length, 1))
    query = torch.arange(length, device=device)
    leader = query // stride * stride + (stride - 1 if causal else stride // 2)
    leader = leader.clamp(max=length - 1)
    if causal:
        return torch.stack([(leader - size + 1).clamp(min=0), query + 1], -1).unsqueeze(0)
    first = (leader - size // 2).clamp(min=0, max=length - size if length else 0)
    return torch.stack([first, first + size], -1).unsqueeze(0)


def prefix_ranges(
    prefix: Integer[Tensor, "b"] | int,
    length: int,
    *,
    device: torch.device | str | None = None,
) -> Int64[Tensor, "#b i 2"]:
    """Each query sees the prefix, and what is not ahead of itself: a prefix language model.

    Raffel et al. 2020, figure 3. The prefix sees all of itself.

    Args:
        prefix: its length in tokens, one for each sequence or one for all; a prefix longer than
            `length` is all of it.
        length: number of tokens, queries and keys.
        device: where the result is made; None: where `prefix` is.

    Raises:
        ShapeError: if `prefix` is no line of integers.
        ValueError: if a number is out of range (those of a tensor looked at on the CPU alone).

    >>> prefix_ranges(2, 4)
    tensor([[[0, 2],
             [0, 2],
             [0, 3],
             [0, 4]]])
    """
    length = check_count("prefix_ranges", "length", length, least=0)
    if isinstance(prefix, Tensor):
        check_shape("prefix_ranges", "prefix", prefix, "b")
        check_integers("prefix_ranges", "prefix", prefix)
        _check_lengths("prefix_ranges", "prefix", prefix)
        prefix = prefix.to(device=device, dtype=torch.int64)
    else:
        count = check_count("prefix_ranges", "prefix", prefix, least=0)
        prefix = torch.tensor([count], device=device)
    causal = torch.arange(1, length + 1, device=prefix.device)
    end = torch.maximum(prefix[:, None].clamp(max=length), causal)
    return torch.stack([torch.zeros_like(end), end], -1)


def padding_ranges(
    lengths: Integer[Tensor, "b"],
    length: int | None = None,
    *,
    queries: int | None = None,
    side: Literal["left", "right"] = "right",
) -> Int64[Tensor, "b i 2"]:
    """Each query sees the tokens of its sequence, and no padding.

    Args:
        lengths: of the sequences, in tokens.
        length: of a padded sequence; None: the longest of `lengths`.
        queries: number of queries; None: `length`.
        side: on which the padding is.

    Raises:
        ShapeError: if `lengths` is no line of integers.
        ValueError: if a number or `side` is out of range, or a sequence longer than `length`
            (looked at on the CPU alone).

    >>> padding_ranges(torch.tensor([2, 1]))
    tensor([[[0, 2],
             [0, 2]],
    <BLANKLINE>
            [[0, 1],
             [0, 1]]])
    """
    check_shape("padding_ranges", "lengths", lengths, "b")
    check_integers("padding_ranges", "lengths", lengths)
    if side not in ("left", "right"):
        raise ValueError(f"padding_ranges: side must be 'left' or 'right', got {one_line(side)}")
    lengths = lengths.long()
    if length is None:
        if lengths.is_meta:
            raise ValueError("padding_ranges: length must be given with lengths on meta, got None")
        length = int(lengths.max()) if lengths.numel() else 0
    length = check_count("padding_ranges", "length", length, least=0)
    queries = length if queries is None else queries
    queries = check_count("padding_ranges", "queries", queries, least=0)
    _check_lengths("padding_ranges", "lengths", lengths, length)
    whole = torch.full_like(lengths, length)
    ends = (torch.zeros_like(lengths), lengths) if side == "right" else (whole - lengths, whole)
    return torch.stack(ends, -1)[:, None].expand(-1, queries, -1)


def _check_lengths(function: str, argument: str, lengths: Tensor, most: int | None = None) -> None:
    """Raise unless all are in `0..most`; elsewhere than on the CPU one would wait for them."""
    if lengths.device.type != "cpu" or torch.compiler.is_compiling() or not lengths.numel():
        return
    least, largest = (int(end) for end in lengths.aminmax())
    if least < 0 or (most is not None and largest > most):
        rule = "at least 0" if most is None else f"in 0..{most}"
        raise ValueError(f"{function}: {argument} must be {rule}, got {one_line(lengths.tolist())}")


def intersect_ranges(*ranges: Integer[Tensor, "#b i 2"]) -> Int64[Tensor, "#b i 2"]:
    """Each query sees the keys that all of the ranges have: chunks of a padded batch.

    Args:
        ranges: at least one, with as many queries each.

    Raises:
        ShapeError: if they do not fit each other, are on several devices, or there is none.

    >>> intersect_ranges(chunk_ranges(4, 2, left_chunks=0), padding_ranges(torch.tensor([3]), 4))
    tensor([[[0, 2],
             [0, 2],
             [2, 3],
             [2, 3]]])
    """
    if not ranges:
        raise ShapeError("intersect_ranges: ranges must be at least one, got none")
    batch = 1
    for number, each in enumerate(ranges):
        name = f"ranges[{number}]"
        sizes = {"b": (1, batch)} if batch > 1 else {}
        sizes |= {"i": ranges[0].shape[1]} if number else {}
        check_shape("intersect_ranges", name, each, "b i 2", sizes)
        check_integers("intersect_ranges", name, each)
        check_device("intersect_ranges", name, each, ranges[0], "ranges[0] is")
        batch = max(batch, each.shape[0])
    first, end = ranges[0].long().unbind(-1)
    for each in ranges[1:]:
        first = torch.maximum(first, each[..., 0])
        end = torch.minimum(end, each[..., 1])
    return torch.stack([first, end], -1)
