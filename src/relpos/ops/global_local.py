"""A window for all tokens, and a few global tokens that see all and are seen by all.

Sources: Beltagy et al. 2020 (Longformer), section 3.1; Xiao et al. 2024, section 3.2, whose
attention sinks are the first tokens of a causal model. The pairs are split in three, so that each
is counted once: the window without the global keys, the global keys, and the global queries, whose
rows take the place of those of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..checks import check_count, one_line
from ..terms import NO_TERMS, GridTerms, Terms
from .api import attention
from .inputs import prepare
from .locality import Window
from .merging import merge

__all__ = ["global_local_attention"]


@overload
def global_local_attention(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms = ..., *, window: Window,
    global_tokens: int | Sequence[int], causal: bool = ..., mask: Tensor | None = ...,
    dropout: float = ..., scale: float | None = ..., softcap: float | None = ...,
    backend: str = ..., return_lse: Literal[False] = ...,
) -> Tensor: ...  # fmt: skip
@overload
def global_local_attention(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms = ..., *, window: Window,
    global_tokens: int | Sequence[int], causal: bool = ..., mask: Tensor | None = ...,
    dropout: float = ..., scale: float | None = ..., softcap: float | None = ...,
    backend: str = ..., return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def global_local_attention(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    v: Float[Tensor, "b g j dv"],
    terms: Terms = NO_TERMS,
    *,
    window: Window,
    global_tokens: int | Sequence[int],
    causal: bool = False,
    mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    softcap: float | None = None,
    backend: str = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "b h i dv"] | tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """`attention` over a window, beside global tokens that see all tokens and are seen by all.

    A pair takes part if its offset is in the window or one of the two is global (and, with
    `causal`, the key is not ahead). Terms act at the offsets that there are. The queries are the
    last `i` of the `j` positions.

    With `n` global tokens the op computes `i * (left + 1 + right)` pairs, `i * n` and `n * j` more.
    Neighbouring global tokens are one call of the op each way, and one more output that is kept
    for the gradients: a few long runs cost less than as many tokens here and there.

    Args:
        q: queries.
        k: keys.
        v: values.
        terms: the tables of a position scheme.
        window: `(left, right)` as in `attention`.
        global_tokens: how many of the first tokens are global, or the positions of those that
            are, in any order, the same for the whole batch: `range(0, j, 64)`.
        causal: as in `attention`; then global keys are attention sinks.
        mask: as in `attention`; it hides from global tokens too.
        dropout: as in `attention`.
        scale: as in `attention`.
        softcap: as in `attention`.
        backend: as in `attention`.
        return_lse: as in `attention`.

    Returns:
        As `attention` does. Where global queries have projections of their own, as in Longformer,
        their rows are to be replaced by an `attention` of these.

    Raises:
        ShapeError: if a shape, dtype or device does not fit `q`.
        ValueError: if a setting is out of range, a global token is none of the `j`, or `terms`
            are those of a grid.
        TypeError: if an argument is of another kind.
        BackendError: as in `attention`.

    >>> q = torch.zeros(1, 1, 5, 2)
    >>> v = torch.eye(5)[None, None]
    >>> (global_local_attention(q, q, v, window=(1, 0), global_tokens=[2]) > 0).int()[0, 0]
    tensor([[1, 0, 1, 0, 0],
            [1, 1, 1, 0, 0],
            [1, 1, 1, 1, 1],
            [0, 0, 1, 1, 0],
            [0, 0, 1, 1, 1]], dtype=torch.int32)
    """
    if isinstance(terms, GridTerms):
        raise ValueError(
            "global_local_attention: terms must be Terms, of a sequence, got GridTerms"
        )
    inputs = prepare(
        "global_local_attention", q, k, v, terms, mask, causal=causal, dropout=dropout,
        scale=scale, window=window, softcap=softcap, return_lse=return_lse,
    )  # fmt: skip
    q, k, v, mask, start = inputs.q, inputs.k, inputs.v, inputs.mask, inputs.query_start
    attend = partial(
        attention, causal=causal, dropout=dropout, scale=scale, softcap=softcap, backend=backend,
        return_lse=True,
    )  # fmt: skip
    runs, i = _runs(global_tokens, k.shape[2]), q.shape[2]
    parts = [attend(q, k, v, terms, window=window, mask=_hide(mask, runs, k))]
    for a, b in runs:
        seen = None if mask is None else _cut(mask, 3, a, b)
        parts.append(attend(q, k[:, :, a:b], v[:, :, a:b], terms, mask=seen, query_start=start - a))
    results = merge(*zip(*parts, strict=True)) if runs else parts[0]
    for a, b in ((max(a - start, 0), min(b - start, i)) for a, b in runs):
        if a < b:
            rows = attend(
                q[:, :, a:b], k, v, _of_queries(terms, a, b), query_start=start + a,
                mask=None if mask is None else _cut(mask, 2, a, b),
            )  # fmt: skip
            results = tuple(x.slice_scatter(y, 2, a, b) for x, y in zip(results, rows, strict=True))
    output, lse = results
    return (output, lse) if return_lse else output


def _runs(global_tokens: int | Sequence[int], keys: int) -> list[tuple[int, int]]:
    """Neighbouring global tokens as the first and the end of their run.

    >>> _runs(3, 9), _runs([8, 2, 1, 2], 9)
    ([(0, 3)], [(1, 3), (8, 9)])
    """
    name = "global_local_attention"
    if isinstance(global_tokens, Tensor):
        raise TypeError(
            f"{name}: global_tokens must be a number or a sequence of numbers, which tolist() "
            "makes of a tensor, got Tensor"
        )
    if not isinstance(global_tokens, Sequence):
        count = check_count(name, "global_tokens", global_tokens, least=0)
        if count > keys:
            raise ValueError(
                f"{name}: global_tokens must be at most the {keys} tokens, got {count}"
            )
        return [(0, count)] if count else []
    found = {check_count(name, "global_tokens", token, least=0) for token in global_tokens}
    if found and max(found) >= keys:
        raise ValueError(
            f"{name}: global_tokens must be positions of the {keys} tokens, "
            f"got {one_line(max(found))}"
        )
    firsts = sorted(token for token in found if token - 1 not in found)
    ends = sorted(token + 1 for token in found if token + 1 not in found)
    return list(zip(firsts, ends, strict=True))


def _hide(mask: Tensor | None, runs: list[tuple[int, int]], k: Tensor) -> Tensor | None:
    """`mask` without the keys of `runs`, which take part elsewhere."""
    if not runs:
        return mask
    others = torch.ones(k.shape[2], dtype=torch.bool, device=k.device)
    for a, b in runs:
        others[a:b] = False
    if mask is None:
        return others[None, None, None]
    return mask & others if mask.dtype == torch.bool else mask.masked_fill(~others, -torch.inf)


def _cut(mask: Tensor, axis: int, a: int, b: int) -> Tensor:
    """A mask of the queries (axis 2) or keys (axis 3) `a..b-1`."""
    return mask if mask.shape[axis] == 1 else mask.narrow(axis, a, b - a)


def _of_queries(terms: Terms, a: int, b: int) -> Terms:
    return terms if terms.q_rel is None else replace(terms, q_rel=terms.q_rel[:, :, a:b])
