"""Keys and values go from rank to rank, and each rank adds what its rows see of them.

Ring attention (Liu et al. 2023, section 3). While a rank computes with some keys, they travel on to
the next one, and others come in: beside its own it holds those of two ranks at most. Under a window
they travel to the ranks ahead that see them, and then to those behind. Backward they travel once
more, and the sums of their gradients, in 32 bits at least, behind them and home.

What a rank sends, with n tokens on each of P ranks, e bytes a number and w >= 4 a gradient, where
keys visit V other ranks (P - 1 of them without a window), A = 1 if any of these are ahead, else 0:

    forward   V b g n (d + dv) e
    backward  V b g n (d + dv) e  and  (V + A) b g n (d + dv) w
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from ...ops.parts import RowFlow, RowSums
from ..ranks.exchange import Transfer
from .blocks import add_gradients, add_parts, shard_sums
from .cut_call import CutCall, KeyShard

__all__ = ["ring_backward", "ring_forward"]

_KEYS, _GRADIENTS = "keys and values", "gradients of keys and values"


def ring_forward(call: CutCall, sums: RowSums) -> None:
    """Take all keys into this rank's rows."""
    outcome = call.new_outcome()
    for shard in _travelling(call):
        outcome.attempt(partial(add_parts, call, shard, sums))
        del shard  # before the next but one has its place
    outcome.raise_together()


def ring_backward(
    call: CutCall, flow: RowFlow, own: dict[str, Tensor], wanted: frozenset[str]
) -> dict[str, Tensor]:
    """The gradients of this rank's keys and what belongs to them; others are added to `own`.

    Args:
        call: the call.
        flow: of this rank's rows.
        own: `blocks.own_sums`.
        wanted: names of gradients.
    """
    ranks, (ahead, behind) = call.ranks, call.reach
    outcome = call.new_outcome()
    home: list[_ArrivingSums] = []
    sums = _ArrivingSums({})
    # `zip` would hold a shard longer.
    way, travelling = iter(_way(call)), _travelling(call)
    for shard in travelling:
        at = next(way)
        if at in (0, -1):  # here sums begin, of those ahead with the rank's own
            sums = _ArrivingSums(shard_sums(shard, wanted))
        outcome.attempt(partial(add_gradients, call, shard, flow, own, sums, wanted))
        # To the rank that computes with these keys next; from the last one home.
        is_last = at == (ahead if at >= 0 else -behind)
        steps = -at if is_last else 1 if at >= 0 else -1
        if steps:
            coming = ranks.rank if is_last else (ranks.rank - at - steps) % ranks.size
            found = sums()
            with ranks.exchanging("attention", _GRADIENTS):
                transfer = Transfer(
                    ranks, found, shard_sums(shard, wanted, call.keys[coming]), steps=steps,
                    kind="ring gradients",
                )  # fmt: skip
            sums = _ArrivingSums(transfer)
        if is_last:
            home.append(sums)
        del shard
    first, *others = (arriving() for arriving in home)
    for found in others:
        for name, x in found.items():
            first[name] += x
    outcome.raise_together()
    return first


class _ArrivingSums:
    """Sums of gradients of a rank's keys, on their way here while this rank computes.

    They are waited for when the first gradient is there to be added.

    Args:
        sums: those, or the transfer that brings them.
    """

    def __init__(self, sums: dict[str, Tensor] | Transfer) -> None:
        self._sums = sums

    def __call__(self) -> dict[str, Tensor]:
        if isinstance(self._sums, Transfer):
            with self._sums.ranks.exchanging("attention", _GRADIENTS):
                self._sums = self._sums.wait()
        return self._sums


def _way(call: CutCall) -> list[int]:
    """How many ranks ahead of their own the keys of each are, one time after another."""
    ahead, behind = call.reach
    return [*range(ahead + 1), *range(-1, -behind - 1, -1)]


def _travelling(call: CutCall) -> Iterator[KeyShard]:
    """The keys of one rank after another, this one's first; the next ones travel meanwhile."""
    shard, ranks, way = call.own_keys, call.ranks, _way(call)
    for at in [*way[1:], None]:
        transfer, spans = None, ()
        if at is not None:
            spans = call.keys[(ranks.rank - at) % ranks.size]
            sent = call.own_keys if at == -1 else shard
            received = {
                name: sent.tensors[name].new_empty(shape)
                for name, shape in sent.shapes(spans).items()
            }
            with ranks.exchanging("attention", _KEYS):
                transfer = Transfer(
                    ranks, sent.tensors, received, steps=1 if at > 0 else -1, kind="ring"
                )
            del sent
        yield shard
        if transfer is not None:
            with ranks.exchanging("attention", _KEYS):
                shard = KeyShard(spans, transfer.wait())
