"""Where the queries of a call start, for schemes that ask."""

from __future__ import annotations

from typing import Any

from ..checks import check_count

__all__ = ["start_of_queries"]


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
