"""Which of the three methods a call takes."""

from __future__ import annotations

from typing import Literal

from ..checks import one_line
from ..errors import BackendError
from ..terms import GridTerms
from .cut_call import CutCall

__all__ = ["METHODS", "Method", "check_method", "choose_method"]

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
    """The method of a call.

    `"auto"` is `"heads"` where that sends least and gives every rank as many heads: with `h` query
    and `g` key heads on `P` ranks it sends `(h + g) / (g P)` of what `"gather"` does. Otherwise it
    is `"ring"` where a window ends it early, `"gather"` while keys and values of the whole sequence
    are small, and then `"ring"`.

    Args:
        call: the call.
        method: by name.

    Returns:
        The method; `"whole"` where every rank has all keys, and nothing is exchanged.

    Raises:
        ValueError: if there are fewer query heads than ranks, for `"heads"`.
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
    if method == "auto":
        even = heads % size == 0 and kv_heads % size == 0
        sent = (heads + kv_heads) * (size - 1)
        if grid or size == 1 or (even and sent <= kv_heads * size * call.visits):
            method = "heads"
        elif call.visits < size - 1:
            method = "ring"
        else:
            batch, _, _, width = local.k.shape
            numbers = batch * kv_heads * call.num_keys * (width + local.v.shape[3])
            small = numbers * local.k.element_size() <= _GATHERED_BYTES
            method = "gather" if small else "ring"
    if method == "heads" and heads < size:
        hint = "" if grid else "; 'ring' and 'gather' do with any number"
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
