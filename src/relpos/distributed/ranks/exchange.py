"""What ranks send each other: a few collectives of torch.distributed, and the bytes of each.

Shards may differ in length. Collectives want them equal, so they are padded to the longest, which
by `layout.py` is one or two tokens longer than others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, distributed
from torch.distributed import P2POp

from ...ops.inputs import wide_dtype
from .group import Ranks

# By the names that torch 2.13 gave them, and those from before.
_all_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_reduce_scatter = (
    getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
)

__all__ = [
    "SpansOfRanks",
    "Transfer",
    "all_to_all",
    "count_bytes",
    "gather_numbers",
    "gather_shards",
    "record_timeline",
    "scatter_sums",
    "timed",
]

SpansOfRanks = tuple[tuple[tuple[int, int], ...], ...]  # what each rank has of a sequence

_COUNTS: list[dict[str, int]] = []


@contextmanager
def count_bytes() -> Iterator[dict[str, int]]:
    """The bytes that this rank sends to others meanwhile, by the kind of exchange.

    Of an all-gather and a reduce-scatter those of the ring algorithm, a share of (P-1)/P of all.
    """
    counts: dict[str, int] = {}
    _COUNTS.append(counts)
    try:
        yield counts
    finally:
        _COUNTS.remove(counts)


def _count(kind: str, *sent: Tensor) -> None:
    for counts in _COUNTS:
        counts[kind] = counts.get(kind, 0) + sum(x.numel() * x.element_size() for x in sent)


_TIMELINES: list[list[tuple[str, float, float]]] = []


@contextmanager
def record_timeline() -> Iterator[list[tuple[str, float, float]]]:
    """What this rank does meanwhile, each with its beginning and end by `time.perf_counter`.

    What runs on a device other than the CPU is in them as long as it takes to ask for it.
    """
    events: list[tuple[str, float, float]] = []
    _TIMELINES.append(events)
    try:
        yield events
    finally:
        _TIMELINES.remove(events)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Record what happens within, where somebody records."""
    if not _TIMELINES:
        yield
        return
    begin = time.perf_counter()
    try:
        yield
    finally:
        for events in _TIMELINES:
            events.append((what, begin, time.perf_counter()))


def gather_shards(ranks: Ranks, x: Tensor, dim: int, cut: SpansOfRanks) -> list[Tensor]:
    """The shards of all ranks, each of its own length along `dim`."""
    if ranks.size == 1:
        return [x]
    counts = [sum(end - first for first, end in own) for own in cut]
    own = _padded(x, dim, max(counts))
    # As bytes, of which every dtype is made.
    sent = own.view(-1).view(torch.uint8)
    flat = sent.new_empty(ranks.size * sent.numel())
    _all_gather(flat, sent, group=ranks.group)
    _count("gather", *[sent] * (ranks.size - 1))
    gathered = flat.view(x.dtype).view(ranks.size, *own.shape)
    return [gathered[rank].narrow(dim, 0, count) for rank, count in enumerate(counts)]


def scatter_sums(ranks: Ranks, whole: Tensor, dim: int, cut: SpansOfRanks) -> Tensor:
    """This rank's shard of the sum over all ranks of `whole`, summed in 32 bits at least."""
    counts = [sum(end - first for first, end in own) for own in cut]
    shape = list(whole.shape)
    shape[dim] = max(counts)
    given = whole.new_zeros(ranks.size, *shape, dtype=wide_dtype(whole))
    for own_part, own in zip(given, cut, strict=True):
        at = 0
        for first, end in own:
            own_part.narrow(dim, at, end - first).copy_(whole.narrow(dim, first, end - first))
            at += end - first
    if ranks.size == 1:
        return given[0].to(whole.dtype)
    found = torch.empty_like(given[0])
    _reduce_scatter(found.view(-1), given.view(-1), group=ranks.group)
    _count("scatter", *given[1:])
    return found.narrow(dim, 0, counts[ranks.rank]).to(whole.dtype).contiguous()


def all_to_all(
    ranks: Ranks, given: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]
) -> list[Tensor]:
    """What each rank gives this one.

    Args:
        ranks: of the group.
        given: for each rank a tensor, all of one dtype.
        shapes: of what each rank gives.
    """
    if ranks.size == 1:
        return list(given)
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = torch.cat([x.reshape(-1) for x in given])
    found = flat.new_empty(sum(sizes))
    distributed.all_to_all_single(found, flat, sizes, [x.numel() for x in given], group=ranks.group)
    _count("all-to-all", *(x for rank, x in enumerate(given) if rank != ranks.rank))
    return [x.view(shape) for x, shape in zip(found.split(sizes), shapes, strict=True)]


def gather_numbers(ranks: Ranks, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
    """The same count of integers of every rank."""
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    found = own.new_empty(ranks.size * own.numel())
    _all_gather(found, own, group=ranks.group)
    return found.view(ranks.size, -1).tolist()


class Transfer:
    """Tensors on their way from rank to rank, while this one computes.

    Args:
        ranks: of the group.
        sent: what goes out by name; it must stay as it is until `wait` is over.
        received: tensors for what comes in, by the same names.
        steps: how many ranks further it goes, backward if negative.
        kind: under which its bytes are counted.
    """

    def __init__(
        self,
        ranks: Ranks,
        sent: dict[str, Tensor],
        received: dict[str, Tensor],
        *,
        steps: int,
        kind: str,
    ) -> None:
        self.ranks, self._received, self._works, self._kind = ranks, received, [], kind
        self._sent = [_dense(x) for x in sent.values()]
        to, source = ranks.global_rank(ranks.rank + steps), ranks.global_rank(ranks.rank - steps)
        operations = [
            P2POp(send_or_receive, _bytes(x), other, ranks.group)
            for send_or_receive, tensors, other in (
                (distributed.isend, self._sent, to),
                (distributed.irecv, received.values(), source),
            )
            for x in tensors
            if x.numel()
        ]
        if operations:
            self._works = distributed.batch_isend_irecv(operations)
        _count(kind, *self._sent)

    def wait(self) -> dict[str, Tensor]:
        """What came in."""
        with timed(f"wait for {self._kind}"):
            for work in self._works:
                work.wait()
        self._works, self._sent = [], []
        return self._received


def _padded(x: Tensor, dim: int, length: int) -> Tensor:
    if x.shape[dim] == length:
        return _dense(x)
    padded = x.new_zeros((*x.shape[:dim], length, *x.shape[dim + 1 :]))
    padded.narrow(dim, 0, x.shape[dim]).copy_(x.detach())
    return padded


def _dense(x: Tensor) -> Tensor:
    return x.detach().resolve_conj().resolve_neg().contiguous()


def _bytes(x: Tensor) -> Tensor:
    """Booleans as bytes, which every collective takes."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x
