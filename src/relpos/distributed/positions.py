"""A position scheme over a sequence of which a rank has some tokens.

A scheme is called with queries and keys that follow each other. So it is called once for each run
of this rank's queries and of its keys, and once for the tables of all offsets of the sequence. Each
time the other side is a single token far off: schemes look at its place, not at what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..adapters.instance_forward import has_other_forward
from ..positions import Compose
from ..positions.handover import apply_position
from ..terms import Terms
from .layout import Span, placed

__all__ = ["CutTokens", "apply_cut_position", "check_gathered", "is_known", "scheme_name"]


@dataclass(frozen=True)
class CutTokens:
    """Which tokens of a sequence this rank has.

    Args:
        queries: its runs of queries.
        keys: its runs of keys.
        num_queries: of the whole sequence.
        num_keys: of the whole sequence.
        query_start: position of the first query of the whole sequence.
    """

    queries: Sequence[Span]
    keys: Sequence[Span]
    num_queries: int
    num_keys: int
    query_start: int

    @property
    def end(self) -> int:
        """The last position plus one."""
        return max(self.num_keys, self.query_start + self.num_queries)


def apply_cut_position(
    owner: str,
    position: Callable[..., Any] | None,
    q: Tensor,
    k: Tensor,
    x: Tensor,
    tokens: CutTokens,
) -> tuple[Tensor, Tensor, Terms]:
    """This rank's queries and keys as the scheme changes them, and the terms of the sequence.

    Args:
        owner: the class on whose behalf it is done.
        position: as in `apply_position`.
        q: `(b, h, i, d)`, this rank's.
        k: `(b, g, j, d)`, this rank's.
        x: `(b, i, e)`, the layer's input at the queries.
        tokens: which these are.

    Raises:
        TypeError: if the scheme changes keys and does not say that it reads `key_start`.
        ValueError: if it is made for a grid, or sharded by itself.
    """
    if position is None:
        return q, k, Terms()
    check_gathered(owner, position)
    if getattr(position, "reads_shape", False):
        raise _made_for_a_grid(owner, position)
    reads_key_start = getattr(position, "reads_key_start", False)
    apply = partial(apply_position, position)
    one_key = _one_token(k)
    changed: list[Tensor] = []
    q_rel: list[Tensor | None] = []
    is_changed = has_tables = False
    for rows, (first, _) in placed(tokens.queries) or [(slice(0, 0), (0, 0))]:
        run, start = q[:, :, rows], tokens.query_start + first
        new_q, new_k, terms = apply(
            run, one_key, x[:, rows], query_start=start, key_start=max(tokens.end - 1, 0)
        )
        if not isinstance(terms, Terms):
            raise _made_for_a_grid(owner, position)
        if new_k is not one_key and not reads_key_start:
            raise TypeError(
                f"{owner}: position must have reads_key_start = True, and take key_start=, to "
                f"change keys of a cut sequence, got {scheme_name(position)}"
            )
        # Of some runs a scheme may change nothing.
        changed.append(new_q)
        is_changed = is_changed or new_q is not run
        q_rel.append(terms.q_rel)
        has_tables = has_tables or bool(terms.tables)
    if has_tables:
        of_tables = partial(apply_position, _that_makes_tables(position, q, k, x))
        terms = _terms_of_sequence(of_tables, q, k, x, tokens)
    # Where there are none they are the queries: so they are on all ranks, if they are not on some.
    own_rows = not is_known(position) and "keys" in terms.tables
    if own_rows or any(each is not None for each in q_rel):
        rows = [x if each is None else each for x, each in zip(changed, q_rel, strict=True)]
        terms = replace(terms, q_rel=torch.cat(rows, 2))
    if is_changed:
        q = torch.cat(changed, 2)
    if reads_key_start:
        far = {"x": x[:, :1], "query_start": max(tokens.end - 1, 0)}
        parts = [
            apply(_one_token(q), k[:, :, columns], **far, key_start=first)[1]
            for columns, (first, _) in placed(tokens.keys)
        ]
        k = torch.cat(parts, 2) if parts else k
    return q, k, terms


def check_gathered(owner: str, position: object) -> None:
    """Raise a ValueError if a scheme gathers its own parameters whenever it is called.

    Ranks call it as often as they have runs of tokens, and would wait for each other.

    Args:
        owner: the class on whose behalf it is checked.
        position: the scheme.
    """
    position = getattr(position, "scheme_of_all_heads", position)
    parts = position.modules() if isinstance(position, nn.Module) else ()
    if any(isinstance(part, FSDPModule) for part in parts):
        raise ValueError(
            f"{owner}: position must be sharded with its layer, by fully_shard(layer) or of a "
            f"module around it, got {scheme_name(position)} sharded by itself"
        )


def _is_hooked(module: nn.Module) -> bool:
    """Whether a call of a module does more than the `forward` of its class."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(hooks) or has_other_forward(module)


def is_known(position: object) -> bool:
    """Whether a scheme is one of the library's, known to be right where it is cut.

    Args:
        position: the scheme.
    """
    position = getattr(position, "scheme_of_all_heads", position)
    if not isinstance(position, nn.Module):
        return False
    # Also of what a class is made: parametrizations and `fully_shard` make classes of torch's.
    bases = {
        base for part in position.modules() for base in type(part).__mro__ if base is not object
    }
    return all(
        base.__module__.startswith(("relpos.positions.", "torch.")) for base in bases
    ) and not any(_is_hooked(part) for part in position.modules())


def scheme_name(position: object) -> str:
    """The class of a scheme, also of one of which a rank has some heads."""
    return type(getattr(position, "scheme_of_all_heads", position)).__name__


def _made_for_a_grid(owner: str, position: object) -> ValueError:
    return ValueError(
        f"{owner}: position must be one of a sequence where it is cut among ranks, "
        f"got {scheme_name(position)}, of a grid"
    )


def _that_makes_tables(
    position: Callable[..., Any], q: Tensor, k: Tensor, x: Tensor
) -> Callable[..., Any]:
    """A scheme without those of its parts that change keys and make no tables.

    They are called for each run of a rank's keys; with as many keys as the sequence has, they
    would change keys that nobody reads.
    """
    if not isinstance(position, Compose) or not position.reads_key_start:
        return position
    # Of a class of its own, or with hooks, it may do more than call its parts.
    if type(position) is not Compose or _is_hooked(position):
        return position
    kept = []
    for part in position.positions:
        if getattr(part, "reads_key_start", False):
            _, _, terms = apply_position(
                part, _one_token(q), _one_token(k), _one_input(x, 1), query_start=0
            )
            if isinstance(terms, Terms) and not terms.tables:
                continue
        kept.append(_that_makes_tables(part, q, k, x))
    return Compose(*kept)


def _terms_of_sequence(
    apply: Callable[..., tuple[Tensor, Tensor, Any]],
    q: Tensor,
    k: Tensor,
    x: Tensor,
    tokens: CutTokens,
) -> Terms:
    """The tables of all offsets of the sequence, the same on every rank."""
    # One query with so many keys that it selects every offset of the sequence.
    last = tokens.query_start + tokens.num_queries - 1
    count = max(tokens.num_keys + tokens.num_queries - 1, 0)
    one = _one_input(x, 1)
    keys = _one_token(k).expand(-1, -1, count, -1)
    _, _, terms = apply(_one_token(q), keys, one, query_start=last)
    position = apply.args[0]  # type: ignore[attr-defined]
    if not getattr(position, "reads_query_start", False) and terms.tables:
        # It takes the queries to be the last ones: is a row of its tables the same anywhere?
        _, _, other = apply(_one_token(q), _one_token(k), one)
        if _extents(other) != _extents(terms):
            queries = _one_token(q).expand(-1, -1, tokens.num_queries, -1)
            keys = _one_token(k).expand(-1, -1, tokens.num_keys, -1)
            _, _, terms = apply(queries, keys, _one_input(x, tokens.num_queries))
    return terms


def _one_token(like: Tensor) -> Tensor:
    """A token of zeros for every head, of one batch entry."""
    return like.new_zeros(1, like.shape[1], 1, like.shape[3])


def _one_input(x: Tensor, count: int) -> Tensor:
    return x.new_zeros(1, 1, x.shape[2]).expand(-1, count, -1)


def _extents(terms: Terms) -> dict[str, tuple[int, int]]:
    return {name: (table.first, table.rows.shape[1]) for name, table in terms.tables.items()}
