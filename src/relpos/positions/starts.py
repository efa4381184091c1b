"""Where the queries of a call start, and the offsets that it has, for schemes that ask."""

from __future__ import annotations

from typing import Any, cast

import torch

from ..checks import check_count

__all__ = ["offsets_of_call", "start_of_queries"]


def start_of_queries(owner: str, query_start: Any, i: int, j: int) -> int:
    """`query_start`, or for None that of the last `i` of `j` positions.

    Args:
        owner: the scheme's class.
        query_start: position of the first query.
        i: number of queries.
        j: number of keys.

    Raises:
        ValueError: if `query_start` is no integer.

    >>> start_of_queries("Rotary", None, 1, 5), start_of_queries("Rotary", 2, 1, 5)
    (4, 2)
    """
    if query_start is None:
        return j - i
    return check_count(owner, "query_start", query_start, least=None)


def offsets_of_call(start: int, i: int, j: int, *, causal: bool) -> tuple[int, int]:
    """The first and the last offset between queries and keys: one at least, even without either.

    Args:
        start: position of the first query.
        i: number of queries.
        j: number of keys, from position 0 on.
        causal: whether offsets ahead of the query are left out.

    >>> offsets_of_call(4, 3, 7, causal=False), offsets_of_call(4, 3, 7, causal=True)
    ((-6, 2), (-6, 0))
    """
    first, last = 1 - start - i, j - 1 - start
    # `sym_min` and `sym_max`, since lengths may be symbols of `torch.compile`.
    last = torch.sym_min(last, 0) if causal else last
    return first, cast(int, torch.sym_max(first, last))
