"""Every rank has all keys from the start, those of a short text, say: nothing is exchanged.

What flows to the keys from this rank's rows is its part of the sum, as with the tables.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from ...ops.parts import RowFlow, RowSums
from .blocks import add_gradients, add_parts, shard_sums
from .cut_call import CutCall

__all__ = ["whole_backward", "whole_forward"]


def whole_forward(call: CutCall, sums: RowSums) -> None:
    """Take all keys into this rank's rows."""
    outcome = call.new_outcome()
    outcome.attempt(partial(add_parts, call, call.own_keys, sums))
    outcome.raise_together()


def whole_backward(
    call: CutCall, flow: RowFlow, own: dict[str, Tensor], wanted: frozenset[str]
) -> dict[str, Tensor]:
    """This rank's part of the gradients of the keys and what belongs to them.

    Args:
        call: the call.
        flow: of this rank's rows.
        own: `blocks.own_sums`, to which all others are added.
        wanted: names of gradients.
    """
    found = shard_sums(call.own_keys, wanted)
    add_gradients(call, call.own_keys, flow, own, lambda: found, wanted)
    return found
