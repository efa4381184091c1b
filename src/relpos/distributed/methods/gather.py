"""Every rank has the keys and values of the whole sequence for a while.

As Llama 3 was trained (Grattafiori et al. 2024, section 3.3.2). Two calls of the op at most, few
exchanges, and the memory of all keys; they are gathered again backward, not kept.

What a rank sends, with n tokens on each of P ranks, e bytes a number and w >= 4 a gradient:

    forward   (P - 1) b g n (d + dv) e
    backward  (P - 1) b g n (d + dv) e  and  (P - 1) b g n (d + dv) w
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ...ops.parts import RowFlow, RowSums
from ..layout import in_order
from ..ranks.exchange import gather_shards, scatter_sums
from .blocks import add_gradients, add_parts, shard_sums
from .cut_call import TOKEN_AXES, CutCall, KeyShard

__all__ = ["gather_backward", "gather_forward"]


def gather_forward(call: CutCall, sums: RowSums) -> None:
    """Take all keys into this rank's rows."""
    outcome = call.new_outcome()
    outcome.attempt(partial(add_parts, call, _gathered(call), sums))
    outcome.raise_together()


def gather_backward(
    call: CutCall, flow: RowFlow, own: dict[str, Tensor], wanted: frozenset[str]
) -> dict[str, Tensor]:
    """The gradients of this rank's keys and what belongs to them; others are added to `own`.

    Args:
        call: the call.
        flow: of this rank's rows.
        own: `blocks.own_sums`.
        wanted: names of gradients.
    """
    shard = _gathered(call)
    found = shard_sums(shard, wanted)
    outcome = call.new_outcome()
    outcome.attempt(partial(add_gradients, call, shard, flow, own, lambda: found, wanted))
    # Of all that is as long as the sequence nothing is held longer than it is needed.
    del shard
    home = {}
    with call.ranks.exchanging("attention", "gradients of keys and values"):
        for name in list(found):
            home[name] = scatter_sums(call.ranks, found.pop(name), TOKEN_AXES[name], call.keys)
    outcome.raise_together()
    return home


def _gathered(call: CutCall) -> KeyShard:
    """All keys as one shard, in the order of the sequence."""
    with call.ranks.exchanging("attention", "keys and values"):
        tensors = {
            name: in_order(
                gather_shards(call.ranks, x, TOKEN_AXES[name], call.keys), TOKEN_AXES[name],
                call.keys,
            )
            for name, x in call.own_keys.tensors.items()
        }  # fmt: skip
    spans = ((0, call.num_keys),) if call.num_keys else ()
    return KeyShard(spans, tensors)
