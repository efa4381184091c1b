"""Which heads each rank has, where they are cut among ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from ...terms import GridTerms, OffsetTable, Terms

__all__ = ["HeadCut", "terms_of_heads"]


@dataclass(frozen=True)
class HeadCut:
    """Which heads each rank has.

    Args:
        queries: of each rank the query heads `first..end-1`.
        keys: of each rank the key heads that these read, in order, one for several query heads or
            one for each.
    """

    queries: tuple[range, ...]
    keys: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, heads: int, kv_heads: int, size: int) -> HeadCut:
        """The cut of some query and key heads among `size` ranks.

        >>> HeadCut.of(4, 2, 2)
        HeadCut(queries=(range(0, 2), range(2, 4)), keys=((0,), (1,)))
        >>> HeadCut.of(6, 2, 4).keys
        ((0,), (0, 1), (1,), (1,))
        """
        queries, first = [], 0
        for rank in range(size):
            count = heads // size + (rank < heads % size)
            queries.append(range(first, first + count))
            first += count
        group = heads // kv_heads
        return cls(tuple(queries), tuple(_key_heads(own, group) for own in queries))


def _key_heads(queries: range, group: int) -> tuple[int, ...]:
    """The key heads that some query heads read, one for each of as many query heads."""
    each = [head // group for head in queries]
    distinct = sorted(set(each))
    shared = len(each) // len(distinct) if distinct else 1
    # The op gives the same number of query heads to each key head.
    even = [head for head in distinct for _ in range(shared)] == each
    return tuple(distinct if even else each)


def terms_of_heads(
    terms: Terms | GridTerms, own: range, of_q_rel: Callable[[Tensor], Tensor]
) -> Terms | GridTerms:
    """The terms of some heads: tables of each head are cut, shared ones stay as they are.

    Args:
        terms: of all heads.
        own: which heads.
        of_q_rel: gives those of `q_rel`.
    """
    if isinstance(terms, GridTerms):
        joint_bias = terms.joint_bias
        return replace(
            terms,
            axes=tuple(terms_of_heads(axis, own, of_q_rel) for axis in terms.axes),
            joint_bias=None if joint_bias is None else _rows_of_heads(joint_bias, own),
        )
    tables = {
        name: OffsetTable(_rows_of_heads(table.rows, own), table.first, table.beyond)
        for name, table in terms.tables.items()
    }
    return Terms(**tables, q_rel=None if terms.q_rel is None else of_q_rel(terms.q_rel))


def _rows_of_heads(rows: Tensor, own: range) -> Tensor:
    return rows if rows.shape[0] == 1 else rows[own.start : own.stop]
