"""What relative attention means, as a literal double loop in NumPy: the judge of all backends.

    s_ij = cap(scale * (q_i . k_j + p_i . K[j-i] + k_j . Q[j-i]) + B[j-i]) + mask_ij
    o_i  = sum_j softmax(s_i)_j * (v_j + V[j-i])

with `p_i = q_rel_i` where it is given and `q_i` otherwise, and `cap(x) = c tanh(x / c)` with a
`softcap` of `c` and `x` without (Gemma Team 2024, section 2). On an n-dimensional grid every axis
`a` has tables of its own, indexed by the offset `o_a` along it, and there may be one bias indexed
by all offsets:

    s_ij = cap(scale * (q_i . k_j + sum_a (p_ai . K_a[o_a] + k_j . Q_a[o_a]))
               + sum_a B_a[o_a] + J[o_1, ..., o_n]) + mask_ij
    o_i  = sum_j softmax(s_i)_j * (v_j + sum_a V_a[o_a])

Written from these formulas (Shaw et al. 2018, eq. 3-4; Huang et al. 2018, eq. 3; Ramachandran et
al. 2019, eq. 3; Srinivas et al. 2021, figure 4; Liu et al. 2021, eq. 4; and their siblings) and
from nothing else in this package. Slow on purpose. It needs NumPy, which
`pip install "relpos[definition]"` brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import floor, sqrt
from typing import Literal

from .checks import check_installed

check_installed("relpos.definition", "numpy", extra="definition")

import numpy as np
from jaxtyping import Bool, Float, Integer
from numpy import ndarray

__all__ = ["Axis", "Table", "attention", "grid_attention"]


# Offsets `-left..right`, None: no limit on that side.
Window = tuple[int | None, int | None]
# Of each coordinate of the queries along an axis: the first coordinate of keys, and that after the
# last.
AxisRanges = Integer[ndarray, "#b _ 2"]


@dataclass(frozen=True)
class Table:
    """Rows `(h or 1, r, d)` or scalars `(h or 1, r)`; row n belongs to offset `first + n`."""

    rows: ndarray
    first: int
    beyond: Literal["clamp", "zero"] = "clamp"

    def at(self, head: int, offset: int | Fraction) -> ndarray | np.floating:
        """The row (or scalar) that `head` sees at `offset = key position - query position`.

        An offset between two integers lies between their rows, linearly.
        """
        if offset != floor(offset):
            low, share = floor(offset), float(offset % 1)
            return (1 - share) * self.at(head, low) + share * self.at(head, low + 1)
        offset = int(offset)
        rows = self.rows[head if len(self.rows) > 1 else 0]
        row = offset - self.first
        if 0 <= row < len(rows):
            return rows[row]
        if self.beyond == "zero":
            return np.zeros_like(rows[0])
        return rows[0] if row < 0 else rows[-1]


@dataclass(frozen=True)
class Axis:
    """The tables along one axis of a grid; `q_rel (b, h, i, d_rel)` is dotted with `keys` for q."""

    keys: Table | None = None
    queries: Table | None = None
    bias: Table | None = None
    values: Table | None = None
    q_rel: ndarray | None = None


def attention(
    q: Float[ndarray, "b h i d"],
    k: Float[ndarray, "b g j d"],
    v: Float[ndarray, "b g j dv"],
    *,
    keys: Table | None = None,
    queries: Table | None = None,
    bias: Table | None = None,
    values: Table | None = None,
    q_rel: Float[ndarray, "b h i d_rel"] | None = None,
    causal: bool = False,
    mask: Bool[ndarray, "..."] | Float[ndarray, "..."] | None = None,
    scale: float | None = None,
    query_start: int | None = None,
    window: Window | None = None,
    key_ranges: Integer[ndarray, "#b i 2"] | None = None,
    softcap: float | None = None,
) -> tuple[Float[ndarray, "b h i dv"], Float[ndarray, "b h i"]]:
    """Output `o` and natural log-sum-exp of the scores, pair by pair.

    Args:
        q: queries.
        k: keys; query head `n` reads key head `n // (h // g)`.
        v: values.
        keys: K of the formula.
        queries: Q of the formula.
        bias: B of the formula, in logits.
        values: V of the formula.
        q_rel: p of the formula; None means q.
        causal: a query sees only keys at its own position and before.
        mask: broadcasts to `(b, h, i, j)`; True takes part, or a number added to the score.
        scale: None means `1 / sqrt(d)`.
        query_start: position of the first query; None means that the queries are the last ones.
        window: `(left, right)`: a query sees only keys at the offsets `-left..right`; None on a
            side means no limit there.
        key_ranges: `(lo, hi)` of each query, which sees only the keys `lo..hi-1`.
        softcap: c of the formula.

    Returns:
        The output and the log-sum-exp; a row without any key gives zeros and `-inf`.
    """
    batch, heads, seqlen_q, width = q.shape
    kv_heads, seqlen_k = k.shape[1], k.shape[2]
    scale = 1 / sqrt(width) if scale is None else scale
    query_start = seqlen_k - seqlen_q if query_start is None else query_start
    p = q if q_rel is None else q_rel
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, seqlen_q, seqlen_k))

    output = np.empty((batch, heads, seqlen_q, v.shape[3]))
    lse = np.empty((batch, heads, seqlen_q))
    for b, h, i in np.ndindex(batch, heads, seqlen_q):
        g = h // (heads // kv_heads)
        scores, vectors = [], []
        for j in range(seqlen_k):
            offset = j - (query_start + i)
            if (causal and offset > 0) or not _in_window(offset, window):
                continue
            if not _in_range(j, key_ranges, b, i) or not _is_true(mask, b, h, i, j):
                continue
            score = q[b, h, i] @ k[b, g, j]
            vector = v[b, g, j]
            if keys is not None:
                score = score + p[b, h, i] @ keys.at(h, offset)
            if queries is not None:
                score = score + k[b, g, j] @ queries.at(h, offset)
            score = scale * score
            if bias is not None:
                score = score + bias.at(h, offset)
            if values is not None:
                vector = vector + values.at(h, offset)
            score = _cap(score, softcap) + _added(mask, b, h, i, j)
            if score != -np.inf:
                scores.append(score)
                vectors.append(vector)
        output[b, h, i], lse[b, h, i] = _average(scores, vectors)
    return output, lse


def grid_attention(
    q: Float[ndarray, "b h i d"],
    k: Float[ndarray, "b g j d"],
    v: Float[ndarray, "b g j dv"],
    *,
    shape: tuple[int, ...],
    axes: Sequence[Axis],
    joint_bias: Float[ndarray, "..."] | None = None,
    query_shape: tuple[int, ...] | None = None,
    prefix: int = 0,
    causal: bool = False,
    mask: Bool[ndarray, "..."] | Float[ndarray, "..."] | None = None,
    scale: float | None = None,
    window: Sequence[Window | None] | None = None,
    key_ranges: Integer[ndarray, "#b i 2"] | Sequence[AxisRanges | None] | None = None,
    softcap: float | None = None,
) -> tuple[Float[ndarray, "b h i dv"], Float[ndarray, "b h i"]]:
    """Output `o` and natural log-sum-exp of the scores for tokens on a grid, pair by pair.

    Args:
        q: queries: `prefix` tokens that are not on the grid, then their grid in row-major order.
        k: keys, likewise; query head `n` reads key head `n // (h // g)`.
        v: values, likewise.
        shape: the grid of the keys.
        axes: K_a, Q_a, B_a, V_a and p_a of the formula, one entry per axis; empty if none has any.
        joint_bias: J of the formula, `(h or 1, 2 n - 1, 2 m - 1, ...)`, offset 0 in the middle.
        query_shape: the grid of the queries; None means that of the keys. Offsets along an axis
            count steps of the finer of the two.
        prefix: number of tokens before the grid, to which no table applies.
        causal: a query sees only keys at its own position in row-major order and before.
        mask: broadcasts to `(b, h, i, j)`; True takes part, or a number added to the score.
        scale: None means `1 / sqrt(d)`.
        window: for each axis `(left, right)`, or None: two tokens of the grid see each other only
            if the offset along each axis is in `-left..right`.
        key_ranges: `(lo, hi)` of each query, which sees only the keys `lo..hi-1`; or for each axis
            those of each of the queries' coordinates, or None: a query on the grid sees, of the
            keys on the grid, only those at the coordinates `lo..hi-1` along each axis.
        softcap: c of the formula.

    Returns:
        The output and the log-sum-exp; a row without any key gives zeros and `-inf`.
    """
    batch, heads, seqlen_q, width = q.shape
    kv_heads, seqlen_k = k.shape[1], k.shape[2]
    scale = 1 / sqrt(width) if scale is None else scale
    query_shape = shape if query_shape is None else query_shape
    query_coords, key_coords = list(np.ndindex(*query_shape)), list(np.ndindex(*shape))
    axes = axes or [Axis()] * len(shape)
    windows = [None] * len(shape) if window is None else window
    key_ranges, axis_ranges = _split_ranges(key_ranges, len(shape))
    _check_axes(shape, query_shape=query_shape, axes=axes, window=windows, key_ranges=axis_ranges)
    if mask is not None:
        mask = np.broadcast_to(mask, (batch, heads, seqlen_q, seqlen_k))

    output = np.empty((batch, heads, seqlen_q, v.shape[3]))
    lse = np.empty((batch, heads, seqlen_q))
    for b, h, i in np.ndindex(batch, heads, seqlen_q):
        g = h // (heads // kv_heads)
        scores, vectors = [], []
        for j in range(seqlen_k):
            # Without coordinates, for a pair with a token of the prefix, no axis adds or hides.
            on_grid = i >= prefix and j >= prefix
            at_query = query_coords[i - prefix] if on_grid else ()
            at_key = key_coords[j - prefix] if on_grid else ()
            offsets = [*map(_offset, at_query, at_key, query_shape, shape)]
            if (causal and j > i) or not all(map(_in_window, offsets, windows)):
                continue
            in_axis_ranges = _in_axis_ranges(b, at_query, at_key, axis_ranges)
            in_ranges = in_axis_ranges and _in_range(j, key_ranges, b, i)
            if not in_ranges or not _is_true(mask, b, h, i, j):
                continue
            score = scale * (q[b, h, i] @ k[b, g, j])
            vector = v[b, g, j]
            for axis, offset in zip(axes, offsets, strict=False):
                p = q if axis.q_rel is None else axis.q_rel
                if axis.keys is not None:
                    score = score + scale * (p[b, h, i] @ axis.keys.at(h, offset))
                if axis.queries is not None:
                    score = score + scale * (k[b, g, j] @ axis.queries.at(h, offset))
                if axis.bias is not None:
                    score = score + axis.bias.at(h, offset)
                if axis.values is not None:
                    vector = vector + axis.values.at(h, offset)
            if joint_bias is not None and offsets:
                entry = [int(offset) + n - 1 for offset, n in zip(offsets, shape, strict=True)]
                score = score + joint_bias[(h if len(joint_bias) > 1 else 0, *entry)]
            score = _cap(score, softcap) + _added(mask, b, h, i, j)
            if score != -np.inf:
                scores.append(score)
                vectors.append(vector)
        output[b, h, i], lse[b, h, i] = _average(scores, vectors)
    return output, lse


def _check_axes(shape: tuple[int, ...], **along: Sequence[object]) -> None:
    for name, entries in along.items():
        if len(entries) != len(shape):
            raise ValueError(
                f"{name} must have an entry for each of {len(shape)} axes, got {len(entries)}"
            )


def _in_window(offset: int | Fraction, window: Window | None) -> bool:
    left, right = (None, None) if window is None else window
    return (left is None or -left <= offset) and (right is None or offset <= right)


def _in_range(j: int, key_ranges: ndarray | None, b: int, i: int) -> bool:
    if key_ranges is None:
        return True
    lo, hi = key_ranges[b if len(key_ranges) > 1 else 0, i]
    return bool(lo <= j < hi)


def _split_ranges(
    key_ranges: ndarray | Sequence[AxisRanges | None] | None, num_axes: int
) -> tuple[ndarray | None, Sequence[AxisRanges | None]]:
    """Ranges of queries, and those of axes."""
    if key_ranges is None or isinstance(key_ranges, ndarray):
        return key_ranges, [None] * num_axes
    return None, key_ranges


def _in_axis_ranges(
    b: int, query: tuple[int, ...], key: tuple[int, ...], axis_ranges: Sequence[AxisRanges | None]
) -> bool:
    along_axes = zip(key, axis_ranges, query, strict=False)
    return all(_in_range(at, ranges, b, own) for at, ranges, own in along_axes)


def _added(mask: ndarray | None, *pair: int) -> float:
    """What a mask of numbers adds to the score of the pair `b, h, i, j`."""
    return 0.0 if mask is None or mask.dtype == bool else mask[pair]


def _is_true(mask: ndarray | None, *pair: int) -> bool:
    """Whether a boolean mask lets the pair `b, h, i, j` take part; any other does."""
    return mask is None or mask.dtype != bool or bool(mask[pair])


def _cap(score: np.floating, softcap: float | None) -> np.floating:
    return score if softcap is None else softcap * np.tanh(score / softcap)


# A fraction takes long to make, and is asked for with each pair of tokens.
@cache
def _offset(query: int, key: int, queries: int, keys: int) -> int | Fraction:
    """Key minus query coordinate along an axis, in steps of the finer of the two sides."""
    finer = max(queries, keys)
    offset = key * Fraction(finer, keys) - query * Fraction(finer, queries)
    return int(offset) if offset.denominator == 1 else offset


def _average(scores: list, vectors: list) -> tuple[ndarray | float, float]:
    """`sum_j softmax(s)_j x_j`, and the log of the sum of `exp(s)`; zeros if there is no pair."""
    if not scores:
        return 0.0, -np.inf
    highest = max(scores)
    weights = np.exp(np.array(scores) - highest)
    return (weights / weights.sum()) @ np.array(vectors), highest + np.log(weights.sum())
