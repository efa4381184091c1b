"""Every check of `relpos.attention`'s arguments, made once, before any backend runs.

Usual arguments pass by a few comparisons (`_is_floating`, and those here); others go to the checks
that several functions share, which take longer, and word the error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import (
    FLOATING,
    check_device,
    check_flag,
    check_floating,
    check_integers,
    check_like,
    check_probability,
    check_scale,
    check_shape,
    check_softcap,
    check_tensor,
    one_line,
)
from ..errors import ShapeError
from ..terms import GridTerms, Terms

__all__ = [
    "check_attention",
    "check_documents",
    "check_kinds",
    "check_settings",
    "check_tables",
]


def check_kinds(
    function: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | GridTerms,
    mask: Tensor | None,
    documents: Tensor | None,
    query_documents: Tensor | None,
) -> None:
    """Raise unless each argument is of the kind that it must be: axes, floating point or integer.

    Made before autocast changes a dtype.
    """
    for argument, tensor, axes in (("q", q, "b h i d"), ("k", k, "b g j d"), ("v", v, "b g j dv")):
        if not (_is_floating(tensor) and tensor.ndim == 4):
            check_floating(function, argument, tensor, axes)
    if not isinstance(terms, Terms | GridTerms):
        raise TypeError(f"{function}: terms must be Terms or GridTerms, got {type(terms).__name__}")
    for tensor in terms.tensors:
        if tensor.dtype not in FLOATING:  # they are dense, or there would be no terms
            check_floating(function, "terms", tensor)
    if mask is not None:
        check_tensor(function, "mask", mask)
        if mask.dtype not in (torch.bool, *FLOATING):
            raise ShapeError(
                f"{function}: mask must be boolean (True takes part) or floating point, "
                f"got {mask.dtype}"
            )
    for argument, integers in (("documents", documents), ("query_documents", query_documents)):
        if integers is not None:
            check_integers(function, argument, integers)


def check_settings(
    function: str,
    *,
    causal: bool,
    dropout: float,
    scale: float | None,
    softcap: float | None,
    return_lse: bool,
) -> None:
    """Raise unless the settings are plain values within their range."""
    check_flag(function, "causal", causal)
    check_flag(function, "return_lse", return_lse)
    check_probability(function, "dropout", dropout)
    check_scale(function, scale, positive=False)
    check_softcap(function, softcap)


def check_attention(
    function: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | GridTerms,
    mask: Tensor | None,
    documents: Tensor | None,
    *,
    causal: bool,
    query_start: int | None,
) -> None:
    """Raise an error in the function's name: the argument, the rule, and what was given."""
    _check_qkv(function, q, k, v)
    if isinstance(terms, GridTerms):
        _check_grid(function, q, k, terms, documents, causal=causal, query_start=query_start)
    check_tables(function, q, v, terms)
    if mask is not None:
        _check_mask(function, q, k, mask)


def check_tables(function: str, q: Tensor, v: Tensor, terms: Terms | GridTerms) -> None:
    """Raise a ShapeError unless tables and `q_rel` fit `q` and `v`, whatever their tokens are."""
    if isinstance(terms, Terms):
        _check_terms(function, "terms", q, v, terms)
        return
    if terms.joint_bias is not None:
        axes = " ".join(["h", *(f"r{axis}" for axis in range(len(terms.shape)))])
        check_shape(function, "terms.joint_bias", terms.joint_bias, axes, {"h": (1, q.shape[1])})
        check_like(function, "terms.joint_bias", terms.joint_bias, q, "q is")
    for axis, axis_terms in enumerate(terms.axes):
        _check_terms(function, f"terms.axes[{axis}]", q, v, axis_terms)


def check_documents(
    function: str,
    q: Tensor,
    keys: int,
    documents: Tensor | None,
    query_documents: Tensor | None,
    query_start: int,
) -> tuple[Tensor, Tensor | None]:
    """`documents` of the `keys` positions and those of the queries, if these have their own.

    Args:
        function: the public function on whose behalf the check is made.
        q: `(b, h, i, d)`.
        keys: number of keys j.
        documents: a tensor of integers.
        query_documents: likewise; None: the queries are among the positions.
        query_start: position of the first query, in tokens.

    Returns:
        Both in one dtype.

    Raises:
        ShapeError: if a shape or device does not fit.
        ValueError: if `query_documents` comes alone, or queries without it are outside the
            positions.
    """
    if documents is None:
        raise ValueError(
            f"{function}: query_documents must come with documents, those of the keys, got it alone"
        )
    check_shape(function, "documents", documents, "b j", {"b": (1, q.shape[0]), "j": keys})
    check_device(function, "documents", documents, q, "q is")
    if query_documents is not None:
        sizes = {"b": (1, q.shape[0]), "i": q.shape[2]}
        check_shape(function, "query_documents", query_documents, "b i", sizes)
        check_device(function, "query_documents", query_documents, q, "q is")
        return documents.long(), query_documents.long()
    if query_start < 0 or query_start + q.shape[2] > keys:
        raise ValueError(
            f"{function}: query_start must place the queries among the {keys} positions of "
            f"documents, got {query_start} for {q.shape[2]} queries"
        )
    return documents, None


def _check_qkv(function: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    b, h, _, d = q.shape
    k_b, g, j, k_d = k.shape
    v_b, v_g, v_j, _ = v.shape
    if k_b != b or k_d != d:
        check_shape(function, "k", k, "b g j d", {"b": b, "d": d})
    if v_b != b or v_g != g or v_j != j:
        check_shape(function, "v", v, "b g j dv", {"b": b, "g": g, "j": j})
    if g == 0 or h == 0 or h % g:
        raise ShapeError(
            f"{function}: q must have a multiple of k's heads, got {h} query and {g} key heads"
        )
    if d == 0:
        raise ShapeError(f"{function}: q must be at least one number wide, got {tuple(q.shape)}")
    for argument, tensor in (("k", k), ("v", v)):
        check_like(function, argument, tensor, q, "q is")


def _is_floating(x: object) -> bool:
    """Whether `check_floating` lets a tensor of any shape pass."""
    # No quantized tensor has such a dtype.
    return (
        isinstance(x, Tensor)
        and x.dtype in FLOATING
        and x.layout == torch.strided
        and not x.is_nested
    )


def _check_grid(
    function: str,
    q: Tensor,
    k: Tensor,
    terms: GridTerms,
    documents: Tensor | None,
    *,
    causal: bool,
    query_start: int | None,
) -> None:
    for argument, tensor, tokens, shape in (
        ("q", q, terms.query_tokens, terms.query_grid),
        ("k", k, terms.tokens, terms.shape),
    ):
        if tensor.shape[2] != tokens:
            raise ShapeError(
                f"{function}: {argument} must have {tokens} tokens, {terms.prefix} and the whole "
                f"grid {shape}, got {tensor.shape[2]}"
            )
    if query_start is not None:
        raise ValueError(
            f"{function}: query_start must be None with GridTerms, which place each token, "
            f"got {one_line(query_start)}"
        )
    pooled = terms.query_grid != terms.shape
    for argument, given in (("causal", causal), ("documents", documents is not None)):
        if pooled and given:
            raise ValueError(
                f"{function}: {argument} must be left out where queries {terms.query_grid} and "
                f"keys {terms.shape} have grids of their own, got it"
            )


def _check_terms(function: str, of: str, q: Tensor, v: Tensor, terms: Terms) -> None:
    b, h, i, d = q.shape
    if terms.q_rel is not None:
        check_shape(function, f"{of}.q_rel", terms.q_rel, "b h i d_rel", {"b": b, "h": h, "i": i})
        check_like(function, f"{of}.q_rel", terms.q_rel, q, "q is")
        if terms.q_rel.shape[3] == 0:
            raise ShapeError(
                f"{function}: {of}.q_rel must be at least one number wide, "
                f"got {tuple(terms.q_rel.shape)}"
            )
    of_keys = d if terms.q_rel is None else terms.q_rel.shape[3]
    for part, table, width in (
        ("keys", terms.keys, of_keys),
        ("queries", terms.queries, d),
        ("bias", terms.bias, None),
        ("values", terms.values, v.shape[3]),
    ):
        if table is not None:
            _check_table(function, f"{of}.{part}.rows", q, table.rows, width)


def _check_table(function: str, argument: str, q: Tensor, rows: Tensor, width: int | None) -> None:
    """Raise unless a table's rows fit `q`: vectors of a width, or scalars."""
    shape, heads = rows.shape, q.shape[1]
    # `==` one by one: sizes may be symbolic, which `in` mistakes.
    if (shape[0] != 1 and shape[0] != heads) or (width is not None and shape[2] != width):
        axes, sizes = ("h r", {}) if width is None else ("h r d", {"d": width})
        check_shape(function, argument, rows, axes, {"h": (1, heads)} | sizes)
    check_like(function, argument, rows, q, "q is")


def _check_mask(function: str, q: Tensor, k: Tensor, mask: Tensor) -> None:
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    fits = mask.ndim <= 4 and all(
        # `==` one by one: sizes may be symbolic, which `in` mistakes.
        have == 1 or have == want  # noqa: PLR1714
        for have, want in zip(reversed(mask.shape), reversed(full), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{function}: mask must broadcast to (b, h, i, j) = {full}, got {tuple(mask.shape)}"
        )
    check_device(function, "mask", mask, q, "q is")
