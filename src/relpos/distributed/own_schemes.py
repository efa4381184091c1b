"""Whether a scheme of a user's makes of a cut sequence what it makes of a whole one.

A scheme may count queries from the first one, or make tables from what comes in: on one device that
is its own affair, and cut it would be wrong without a word. So it is tried out on a few tokens of
this rank, whole and cut in two. What only shows in longer sequences is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..positions.handover import apply_position
from ..terms import OffsetTable, Terms
from .positions import CutTokens, apply_cut_position, scheme_name

__all__ = ["check_own_scheme"]

_TOKENS = 6


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
    pairs = {
        "queries": (whole_q, torch.cat([q for q, _, _ in cut], 2)),
        "keys": (whole_k, torch.cat([k for _, k, _ in cut], 2)),
    }
    if isinstance(terms, Terms):
        if terms.q_rel is not None:
            found = [part.q_rel for _, _, part in cut]
            pairs["q_rel"] = (terms.q_rel, torch.cat(found, 2))
        for (_, _, part), (name, table) in product(cut, terms.tables.items()):
            pairs[f"tables of {name}"] = _rows(table, count), _rows(part.tables[name], count)
    for what, (one, other) in pairs.items():
        # A bias may be -inf.
        largest = one.masked_fill(~one.isfinite(), 0).abs().max().clamp(min=1).item()
        bound = torch.finfo(one.dtype).eps ** 0.5 * largest
        if not torch.allclose(one, other, rtol=0, atol=bound):
            raise ValueError(
                f"{owner}: position must make of a cut sequence what it makes of a whole one, got "
                f"{scheme_name(position)}, whose {what} differ; what depends on where queries are "
                "takes query_start= (reads_query_start = True), on where keys are key_start=, and "
                "tables depend on no input"
            )


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
    parts = position.modules() if isinstance(position, nn.Module) else (position,)
    return all(type(part).__module__.startswith(("relpos.positions.", "torch.")) for part in parts)


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
