"""Whether a scheme of a user's makes of a cut sequence what it makes of a whole one.

A scheme may count queries from the first one, or make tables from what comes in: on one device that
is its own affair, and cut it would be wrong without a word. So it is tried out on a few tokens of
this rank, whole and cut in two, at each call of a layer. What only shows in longer sequences is not
noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...offsets import rows_at
from ...positions.handover import apply_position
from ...terms import Terms
from ..positions import CutTokens, apply_cut_position, check_gathered, is_known, scheme_name

__all__ = ["check_own_scheme"]

_TOKENS = 6
_Made = tuple[Tensor, Tensor, Terms]


def check_own_scheme(
    owner: str, position: Callable[..., Any] | None, q: Tensor, k: Tensor, x: Tensor
) -> None:
    """Raise unless a scheme is one of the library's, or makes the same of a few tokens cut in two.

    Args:
        owner: the class on whose behalf it is done.
        position: as in `apply_position`.
        q: `(b, h, i, d)`, this rank's.
        k: `(b, g, j, d)`, this rank's.
        x: `(b, i, e)`, the layer's input at the queries.

    Raises:
        ValueError: otherwise.
        TypeError: if it changes keys and does not say that it reads `key_start`.
    """
    count = max(min(_TOKENS, q.shape[2], k.shape[2]), 2)
    if position is None or is_known(position) or not (len(q) and q.shape[2] and k.shape[2]):
        return
    check_gathered(owner, position)
    if getattr(position, "reads_shape", False):  # of which more than this is wrong
        return
    q, k, x = _first(q[:1], 2, count), _first(k[:1], 2, count), _first(x[:1], 1, count)
    half, devices = count // 2, [] if q.is_cpu else [q.device]
    with torch.no_grad(), torch.random.fork_rng(devices), _evaluated(position):
        # Called as on one device, where the queries are the last positions.
        whole_q, whole_k, terms = apply_position(position, q, k, x, query_start=0)
        cut = []
        for first, end in ((0, half), (half, count)):
            runs, at = [(first, end)], slice(first, end)
            tokens = CutTokens(runs, runs, count, count, 0)
            cut.append(
                apply_cut_position(owner, position, q[:, :, at], k[:, :, at], x[:, at], tokens)
            )
    assert isinstance(terms, Terms)  # else it was refused
    for what, one, other, largest in _pairs((whole_q, whole_k, terms), cut, count):
        if _are_alike(one, other, largest):
            continue
        raise ValueError(
            f"{owner}: position must make of a cut sequence what it makes of a whole one, got "
            f"{scheme_name(position)}, whose {what} differ; what depends on where queries are "
            "takes query_start= (reads_query_start = True), on where keys are key_start=, and "
            "tables depend on no input"
        )


def _pairs(
    whole: _Made, cut: Sequence[_Made], count: int
) -> Iterator[tuple[str, Tensor | None, Tensor | None, float]]:
    """What a scheme made of the tokens and of their parts, and up to which number it was summed.

    Args:
        whole: what it made of the tokens.
        cut: what it made of each part of them.
        count: of the tokens.
    """
    (q, k, terms), parts = whole, [part for _, _, part in cut]
    # Where there is no q_rel it is the queries.
    for what, one, others in (
        ("queries", q, [q for q, _, _ in cut]),
        ("keys", k, [k for _, k, _ in cut]),
        ("q_rel", q if terms.q_rel is None else terms.q_rel,
         [q if part.q_rel is None else part.q_rel for q, _, part in cut]),
    ):  # fmt: skip
        yield what, one, torch.cat(others, 2), _largest(one)
    for part in parts:
        for name in terms.tables | part.tables:
            one, other = (
                rows_at(each.tables[name], 1 - count, count - 1) if name in each.tables else None
                for each in (terms, part)
            )
            # Number by number: beside what hides keys (-1e9, -inf) others are small.
            yield f"tables of {name}", one, other, 1.0


def _first(x: Tensor, dim: int, count: int) -> Tensor:
    """So many tokens; of a single one, and another."""
    return (x if x.shape[dim] > 1 else torch.cat([x, 1 - x], dim)).narrow(dim, 0, count)


def _largest(x: Tensor) -> float:
    return x.masked_fill(~x.isfinite(), 0).abs().max().clamp(min=1).item()


def _are_alike(one: Tensor | None, other: Tensor | None, largest: float) -> bool:
    """Whether two tensors, or none, are the same but for rounding."""
    if one is None or other is None:
        return one is other
    bound = torch.finfo(one.dtype).eps ** 0.5
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and torch.allclose(one, other, rtol=bound, atol=bound * largest)


@contextmanager
def _evaluated(position: object) -> Iterator[None]:
    """A scheme in evaluation mode: what it drops by chance differs from call to call."""
    position = getattr(position, "scheme_of_all_heads", position)
    parts = list(position.modules()) if isinstance(position, nn.Module) else []
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
