"""Which of the three methods a call takes."""

from __future__ import annotations

from typing import Literal

from ...checks import one_line
from ...errors import BackendError
from ...terms import GridTerms
from .cut_call import CutCall

__all__ = ["METHODS", "Method", "check_method", "choose_method", "gather_or_ring"]

Method = Literal["auto", "heads", "gather", "ring"]

METHODS = ("heads", "gather", "ring")

# "auto" gathers keys and values of up to so many bytes: less than the models around keep anyway.
_GATHERED_BYTES = 64 << 20


def check_method(function: str, method: object) -> None:
    """Raise a ValueError unless it is a method, or `"auto"`."""
    if not isinstance(method, str) or method not in ("auto", *METHODS):
        raise ValueError(
            f"{function}: method must be 'auto' or one of {', '.join(map(repr, METHODS))}, "
            f"got {one_line(method)}"
        )


def choose_method(call: CutCall, method: str) -> str:
    """The method of a call, by name: it, or what it comes to.

    `"auto"` is `"heads"` where that sends least and gives every rank as many heads: with `h` query
    and `g` key heads on `P` ranks it sends `(h + g) / (g P)` of what `"gather"` does. Otherwise it
    is `"ring"` where a window ends it early, `"gather"` while keys and values of the whole sequence
    are small, and then `"ring"`. On a mesh of two dimensions it is one of the last two, along the
    first of them, but for grids, which are computed by heads on all ranks.

    Args:
        call: the call.
        method: by name.

    Returns:
        The method; `"whole"` where every rank has all keys, and nothing is exchanged; `"hybrid"`
        on a mesh of two dimensions, unless all ranks exchange tokens for heads there.

    Raises:
        ValueError: if there are fewer query heads than ranks that exchange tokens for them.
        BackendError: if the method does not support the terms.
    """
    local, size = call.local, call.ranks.size
    heads, kv_heads = local.q.shape[1], local.k.shape[1]
    grid = isinstance(local.terms, GridTerms)
    if call.whole_keys:
        if grid:
            raise BackendError(
                "attention: key_layout 'whole' does not support GridTerms: a rank's tokens are no "
                "grid"
            )
        return "whole"
    dims = None if grid or method == "heads" else call.ranks.outer_and_inner
    if dims is not None:
        _, inner = dims
        if heads < inner.size:
            raise ValueError(
                "attention: group must have no more ranks along its last dimension than there are "
                f"query heads, {heads}, got {inner.size}; a mesh of one dimension does with any"
            )
        return "hybrid"
    if method == "auto":
        even = heads % size == 0 and kv_heads % size == 0
        sent = (heads + kv_heads) * (size - 1)
        if grid or size == 1 or (even and sent <= kv_heads * size * call.visits):
            method = "heads"
        else:
            method = gather_or_ring(call, method)
    if method == "heads" and heads < size:
        hint = "" if grid else "; 'ring' and 'gather' do with any number"
        if not grid and (dims := call.ranks.outer_and_inner) is not None:
            hint = f"; 'ring' and 'gather' do with {dims[1].size}, one for each along the last axis"
        raise ValueError(
            f"attention: method 'heads' must have at least one query head for each of the {size} "
            f"ranks, got {heads}{hint}"
        )
    if method != "heads" and grid:
        raise BackendError(
            f"attention: method {method!r} does not support GridTerms: a rank's tokens are no grid;"
            " method='heads' gives each rank whole grids"
        )
    return method


def gather_or_ring(call: CutCall, method: str) -> str:
    """The method of a call in which every rank keeps its queries.

    Args:
        call: the call.
        method: by name.
    """
    if method != "auto":
        return method
    if call.visits < call.ranks.size - 1:
        return "ring"
    batch, kv_heads, _, width = call.local.k.shape
    numbers = batch * kv_heads * call.num_keys * (width + call.local.v.shape[3])
    return "gather" if numbers * call.local.k.element_size() <= _GATHERED_BYTES else "ring"
