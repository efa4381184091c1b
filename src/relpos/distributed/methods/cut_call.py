"""One call whose queries and keys are cut among ranks, and which parts of it see each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from ...ops.inputs import DropoutOrigin, Inputs
from ...ops.locality import AnyWindow
from ..layout import Span, placed
from ..ranks.agreement import Outcome
from ..ranks.exchange import SpansOfRanks
from ..ranks.group import Ranks

__all__ = ["TOKEN_AXES", "CutCall", "KeyShard"]

# Of what goes from rank to rank: the axis of the tokens.
TOKEN_AXES = {"k": 2, "v": 2, "mask": 3, "documents": 1}


@dataclass(frozen=True)
class KeyShard:
    """The keys of some rank, with what belongs to them.

    Args:
        spans: where they lie in the sequence.
        tensors: `k (b, g, n, d)`, `v (b, g, n, dv)`, and those that there are of
            `mask (b or 1, h or 1, 1, n)` and `documents (b or 1, n)`, in this order.
    """

    spans: tuple[Span, ...]
    tensors: dict[str, Tensor]

    @property
    def runs(self) -> list[tuple[slice, Span]]:
        """Where each run of keys lies in the shard, and in the sequence."""
        return placed(self.spans)

    def part(self, name: str, columns: slice) -> Tensor | None:
        """A run of one of the tensors, None where there is no such tensor."""
        x = self.tensors.get(name)
        if x is None:
            return None
        return x.narrow(TOKEN_AXES[name], columns.start, columns.stop - columns.start)

    def shapes(self, spans: tuple[Span, ...]) -> dict[str, tuple[int, ...]]:
        """The shapes of the same tensors for other keys."""
        count = sum(end - first for first, end in spans)
        found = {}
        for name, x in self.tensors.items():
            axis = TOKEN_AXES[name]
            found[name] = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return found


@dataclass(frozen=True)
class CutCall:
    """The settings of a call, and who has what of it.

    Args:
        ranks: among which it is cut.
        local: this rank's arguments; `query_start` is that of the whole sequence of queries, and
            `key_ranges` number the keys of the whole sequence.
        queries: the spans of each rank.
        keys: likewise.
        mask_travels: whether the mask is one of this rank's keys, not of the whole sequence's.
        mask_has_rows: whether it has a row for each of this rank's queries.
        backend: that computes the parts, by name.
        check: whether ranks tell each other what went wrong.
        window: as the user gave it.
        whole_keys: whether every rank has all keys, so that none travel.
        all_ranks: those that tell each other what went wrong; None: `ranks`.
    """

    ranks: Ranks
    local: Inputs
    queries: SpansOfRanks
    keys: SpansOfRanks
    mask_travels: bool
    mask_has_rows: bool
    backend: str
    check: bool
    window: AnyWindow = None
    whole_keys: bool = False
    all_ranks: Ranks | None = None

    def new_outcome(self) -> Outcome:
        """What will have become of a pass over this rank's parts."""
        return Outcome(self.all_ranks or self.ranks, "attention", check=self.check)

    @property
    def num_queries(self) -> int:
        """The queries of the whole sequence."""
        return max((end for own in self.queries for _, end in own), default=0)

    @property
    def num_keys(self) -> int:
        """The keys of the whole sequence."""
        return max((end for own in self.keys for _, end in own), default=0)

    @property
    def own_queries(self) -> list[tuple[slice, Span]]:
        """The runs of this rank's queries: where each lies in its shard, and in the sequence."""
        return placed(self.queries[self.ranks.rank])

    @property
    def own_keys(self) -> KeyShard:
        """This rank's keys, and what belongs to them."""
        tensors = {"k": self.local.k, "v": self.local.v}
        if self.mask_travels and self.local.mask is not None:
            tensors["mask"] = self.local.mask
        if self.local.documents is not None:
            tensors["documents"] = self.local.documents
        return KeyShard(self.keys[self.ranks.rank], tensors)

    def dropout_origin(
        self, head: int = 0, first_query: int = 0, first_key: int = 0
    ) -> DropoutOrigin | None:
        """Where some heads and tokens lie in the call whose dropout this is, if there is any.

        Args:
            head: the first, among this call's.
            first_query: in the whole sequence.
            first_key: likewise.
        """
        if not self.local.dropout:
            return None
        outer = self.local.dropout_origin
        heads, first = (self.local.q.shape[1], 0) if outer is None else outer[:2]
        return DropoutOrigin(heads, first + head, self.num_queries, first_query, first_key)

    def sees(self, queries: Span, keys: Span) -> bool:
        """Whether any pair of two runs may take part, by causality and window."""
        return bool(self._seen(*(torch.tensor(x, device="cpu") for x in (queries, keys))))

    def _seen(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The same of many runs `(..., 2)`, none of whose pairs does where one of them is empty."""
        start, local = self.local.query_start, self.local
        (first_query, end_query), (first_key, end_key) = queries.unbind(-1), keys.unbind(-1)
        first_offset = first_key - (start + end_query - 1)
        last_offset = end_key - 1 - (start + first_query)
        left, right = local.window[0] if local.window else (None, None)
        right = 0 if local.causal else right
        seen = (first_query < end_query) & (first_key < end_key)
        if left is not None:
            seen = seen & (last_offset >= -left)
        return seen if right is None else seen & (first_offset <= right)

    @cached_property
    def reach(self) -> tuple[int, int]:
        """How many of the ranks ahead, and of those behind, the keys of each visit at most.

        On a ring they go both ways, each as far as somebody sees them, so that the longest run of
        ranks that need none is left out; if all need them, one way. Every rank finds the same.
        """
        queries, keys = _edges(self.queries), _edges(self.keys)
        pairs = queries[:, None, :, None], keys[None, :, None, :]
        seen = self._seen(*pairs).flatten(2).any(2)
        size, rank = self.ranks.size, torch.arange(self.ranks.size, device="cpu")
        ahead = (rank[:, None] - rank) % size
        visited = sorted({0, *ahead[seen].tolist()})
        # Of equal runs the one that ends at home: one way needs one exchange less backward.
        last, first = max(pairwise([*visited, size]), key=lambda run: (run[1] - run[0], run[1]))
        return last, size - first

    @property
    def visits(self) -> int:
        """How many ranks the keys of each visit besides its own."""
        return sum(self.reach)


def _edges(spans: SpansOfRanks) -> Tensor:
    """`(P, 2, 2)`: of two runs of each rank the first token and the end, both 0 where it is not."""
    assert all(len(own) <= 2 for own in spans)
    return torch.tensor([[*own, (0, 0), (0, 0)][:2] for own in spans], device="cpu")
