"""Whether a scheme of a user's makes of a cut sequence what it makes of a whole one.

A scheme may count queries from the first one, or make tables from what comes in: on one device that
is its own affair, and cut it would be wrong without a word. So it is tried out on a few tokens of
this rank, whole and cut in two, at each call of a layer, if it has two or more. What only shows in
longer sequences is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..positions.handover import apply_position
from ..terms import OffsetTable, Terms
from .positions import CutTokens, apply_cut_position, check_gathered, is_hooked, scheme_name

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
    count = min(_TOKENS, q.shape[2], k.shape[2])
    if position is None or _is_known(position) or count < 2 or not q.shape[0]:
        return
    check_gathered(owner, position)
    if getattr(position, "reads_shape", False):  # of which more than this is wrong
        return
    q, k, x = q[:1, :, :count], k[:1, :, :count], x[:1, :count]
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
    q_rel = [part.q_rel for part in parts if part.q_rel is not None]
    for what, one, others in (
        ("queries", q, [q for q, _, _ in cut]),
        ("keys", k, [k for _, k, _ in cut]),
        ("q_rel", terms.q_rel, q_rel),
    ):
        other = torch.cat(others, 2) if others else None
        yield what, one, other, 1.0 if one is None else _largest(one)
    for part in parts:
        for name in terms.tables | part.tables:
            one, other = (
                _rows(each.tables[name], count) if name in each.tables else None
                for each in (terms, part)
            )
            # Number by number: beside what hides keys (-1e9, -inf) others are small.
            yield f"tables of {name}", one, other, 1.0


def _largest(x: Tensor) -> float:
    return x.masked_fill(~x.isfinite(), 0).abs().max().clamp(min=1).item()


def _are_alike(one: Tensor | None, other: Tensor | None, largest: float) -> bool:
    """Whether two tensors, or none, are the same but for rounding."""
    if one is None or other is None:
        return one is other
    bound = torch.finfo(one.dtype).eps ** 0.5
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and torch.allclose(one, other, rtol=bound, atol=bound * largest)


def _rows(table: OffsetTable, count: int) -> Tensor:
    """Those that the offsets of so many tokens select."""
    offsets = torch.arange(1 - count, count, device=table.rows.device)
    rows = table.rows[:, (offsets - table.first).clamp(0, table.rows.shape[1] - 1)]
    if table.beyond == "clamp":
        return rows
    beyond = (offsets < table.first) | (offsets > table.last)
    return rows.masked_fill(beyond.view(-1, *[1] * (rows.ndim - 2)), 0)


def _is_known(position: object) -> bool:
    """Whether a scheme is one of the library's, which need not be tried out."""
    position = getattr(position, "scheme_of_all_heads", position)
    if not isinstance(position, nn.Module):
        return False
    # Also of what a class is made: parametrizations and `fully_shard` make classes of torch's.
    bases = {
        base for part in position.modules() for base in type(part).__mro__ if base is not object
    }
    return all(
        base.__module__.startswith(("relpos.positions.", "torch.")) for base in bases
    ) and not any(is_hooked(part) for part in position.modules())


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
