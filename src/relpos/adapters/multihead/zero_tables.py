"""Schemes at zero: as constructed, but so that at first they add nothing to the attention.

Of a product only one factor is set to zero, the one that gets a gradient there: the rows of
`RelativeLogits`, not the projection that is multiplied with them. Some schemes act whatever their
tables are, and keep the numbers that they were made with: the slopes of ALiBi and Kerple, rotated
or normalised queries and keys, DeBERTa, which needs another scale.
"""

from __future__ import annotations

from math import sqrt
from operator import attrgetter

import torch
from torch import Tensor, nn

from ...positions import (
    AbsoluteKeys,
    ContinuousBias,
    Grid,
    RelativeLogits,
    T5Bias,
    TransformerXL,
    WindowBias,
)
from ...positions.handover import apply_position, resolve_scale
from ...positions.tables import LearnedTables
from ...terms import GridTerms, Terms
from ..ai_summer import AbsPosEmb1D, RelPosEmb1D, RelPosEmb2D

__all__ = ["explain_change", "zero_tables"]

# With these at zero, a scheme adds nothing, or, ContinuousBias, one number to all scores.
_TABLES: dict[type[nn.Module], tuple[str, ...]] = {
    LearnedTables: ("keys", "values"),
    Grid: ("keys", "values"),
    T5Bias: ("bias",),
    WindowBias: ("joint_bias",),
    RelativeLogits: ("keys",),
    AbsoluteKeys: ("rows",),
    AbsPosEmb1D: ("abs_pos_emb",),
    RelPosEmb1D: ("rel_pos_emb",),
    TransformerXL: ("linear_pos", "pos_bias_u"),
    ContinuousBias: ("cpb_mlp.2",),
}


@torch.no_grad()
def zero_tables(position: nn.Module) -> None:
    """Set the tables of a scheme, and of those inside it, to zero.

    Args:
        position: any scheme; one that is not known here stays as it is.

    >>> from relpos.positions import Compose, Rotary, Shaw
    >>> position = Compose(Rotary(4), Shaw(4, 2))
    >>> zero_tables(position)
    >>> [bool(table.any()) for table in position.parameters()]
    [False, False]
    """
    for part in position.modules():
        for kind, names in _TABLES.items():
            for table in (attrgetter(name)(part) for name in names if isinstance(part, kind)):
                parameters = table.parameters() if isinstance(table, nn.Module) else [table]
                for parameter in parameters:
                    if parameter is not None:
                        parameter.zero_()


@torch.no_grad()
def explain_change(position: nn.Module, like: Tensor, heads: int, head_dim: int) -> str | None:
    """How a scheme changes an attention that had none; None if it does not.

    It is called once, which shows whether it fits. On device "meta" nothing else shows.

    Args:
        position: any scheme, on the device and in the dtype of `like`.
        like: a weight of the attention.
        heads: h.
        head_dim: d.

    Raises:
        ValueError: of the scheme, if it does not fit the heads or the width.

    >>> from relpos.positions import Alibi, NoPosition
    >>> [explain_change(position, torch.zeros(1), 2, 4) for position in (Alibi(2), NoPosition())]
    ['adds terms', None]
    """
    queries, keys = _tokens(position)
    # Any numbers will do whose rotation or norm shows.
    q, k = (
        torch.linspace(1, 2, heads * n * head_dim, device=like.device, dtype=like.dtype).view(
            1, heads, n, head_dim
        )
        for n in (queries, keys)
    )
    x = q.transpose(1, 2).flatten(2)
    new_q, new_k, terms = apply_position(position, q, k, x, query_start=0)
    scale = resolve_scale("add_positions", position, None)
    if like.is_meta:
        return None
    if not torch.equal(new_q, q) or not torch.equal(new_k, k):
        return "changes the queries or keys"
    if scale is not None and abs(scale * sqrt(head_dim) - 1) > 1e-6:
        return f"scales the scores by {scale:.3g}"
    return "adds terms" if _adds(terms) else None


def _tokens(position: nn.Module) -> tuple[int, int]:
    """Numbers of queries and keys with which the scheme may be called."""
    for part in position.modules():
        if isinstance(part, RelPosEmb2D):
            return part.h * part.w, part.h * part.w
        shape = getattr(part, "shape", None)
        if getattr(part, "reads_shape", False) and isinstance(shape, tuple):
            query_shape = getattr(part, "query_shape", shape)
            grids = GridTerms(shape, query_shape=query_shape, prefix=getattr(part, "prefix", 0))
            return grids.query_tokens, grids.tokens
    return 3, 3


def _adds(terms: Terms | GridTerms) -> bool:
    """Whether the terms move any weight or value."""
    if isinstance(terms, GridTerms):
        return _moves(terms.joint_bias, terms.prefix) or any(_adds(axis) for axis in terms.axes)
    products = {name: bool(table.rows.any()) for name, table in terms.tables.items()}
    if terms.q_rel is not None:
        products["keys"] &= bool(terms.q_rel.any())
    return any(products.values())


def _moves(joint_bias: Tensor | None, prefix: int) -> bool:
    if joint_bias is None:
        return False
    rows = joint_bias.flatten(1)
    # One number for all pairs is none to a softmax, unless a prefix goes without.
    return bool((rows != (0 if prefix else rows[:, :1])).any())
