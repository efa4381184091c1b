"""Keys and values go from rank to rank, and each rank adds what its rows see of them.

Ring attention (Liu et al. 2023, section 3). While a rank computes with some keys, they travel on to
the next one, and others come in: beside its own it holds those of two ranks at most. Backward they
travel once more, and the sums of their gradients, in 32 bits at least, behind them and home.

What a rank sends, with n tokens on each of P ranks, e bytes a number and w >= 4 a gradient:

    forward   (P - 1) b g n (d + dv) e
    backward  (P - 1) b g n (d + dv) e  and  P b g n (d + dv) w
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from ..ops.parts import RowFlow, RowSums
from .agreement import Outcome
from .blocks import add_gradients, add_parts, shard_sums
from .cut_call import CutCall, KeyShard
from .exchange import Transfer

__all__ = ["ring_backward", "ring_forward"]

_KEYS, _GRADIENTS = "keys and values", "gradients of keys and values"


def ring_forward(call: CutCall, sums: RowSums) -> None:
    """Take all keys into this rank's rows."""
    outcome = Outcome(call.ranks, "attention", check=call.check)
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
    ranks, hops, transfer = call.ranks, call.hops, None
    outcome = Outcome(ranks, "attention", check=call.check)
    sums = _ArrivingSums({})
    hop = -1  # `enumerate` would hold a shard longer
    for shard in _travelling(call):
        hop += 1
        sums = _ArrivingSums(transfer or shard_sums(shard, wanted))
        outcome.attempt(partial(add_gradients, call, shard, flow, own, sums, wanted))
        # To the rank that computes with these keys next; from the last one home.
        steps = 1 if hop < hops - 1 else -hop
        if steps % ranks.size:
            coming = call.keys[(ranks.rank - hop - 1) % ranks.size if steps > 0 else ranks.rank]
            found = sums()
            with ranks.exchanging("attention", _GRADIENTS):
                transfer = Transfer(
                    ranks, found, shard_sums(shard, wanted, coming), steps=steps,
                    kind="ring gradients",
                )  # fmt: skip
            sums = _ArrivingSums(transfer)
        del shard
    found = sums()
    outcome.raise_together()
    return found


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


def _travelling(call: CutCall) -> Iterator[KeyShard]:
    """The keys of one rank after another, this one's first; the next ones travel meanwhile."""
    shard, ranks, hops = call.own_keys, call.ranks, call.hops
    for hop in range(hops):
        transfer, spans = None, call.keys[(ranks.rank - hop - 1) % ranks.size]
        if hop < hops - 1:
            received = {
                name: shard.tensors[name].new_empty(shape)
                for name, shape in shard.shapes(spans).items()
            }
            with ranks.exchanging("attention", _KEYS):
                transfer = Transfer(ranks, shard.tensors, received, steps=1, kind="ring")
        yield shard
        if transfer is not None:
            with ranks.exchanging("attention", _KEYS):
                shard = KeyShard(spans, transfer.wait())
