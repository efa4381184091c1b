"""Partial results over parts of the keys, put together exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import ShapeError, check_shape

__all__ = ["merge"]


def merge(
    outputs: Sequence[Float[Tensor, "b h i dv"]], lses: Sequence[Float[Tensor, "b h i"]]
) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """`o = sum_n exp(lse_n - lse) o_n` with `lse = log sum_n exp(lse_n)`: attention over all keys.

    Each part comes from `attention(..., return_lse=True)` with the same queries and some of the
    keys. Positions are the caller's: a part whose first key is number `a` has
    `query_start = start - a`, where `start` is the position of the first query. Differentiable.

    An attention sink, a key of logit `s` without a value, is the merge with an output of zeros
    and a log-sum-exp of `s`: `output * torch.sigmoid(lse - s).unsqueeze(-1)`.

    Args:
        outputs: of the parts.
        lses: their natural log-sum-exps, `-inf` where a row has no key.

    Returns:
        The output, in the dtype of the first part, and its log-sum-exp.

    Raises:
        ShapeError: if the parts differ in shape, or there is none.

    >>> q, k = torch.ones(1, 1, 1, 2), torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]]])
    >>> from relpos import attention
    >>> parts = [attention(q, x, x, return_lse=True) for x in (k[:, :, :1], k[:, :, 1:])]
    >>> output, _ = merge(*zip(*parts))
    >>> torch.allclose(output, attention(q, k, k))
    True
    """
    if not outputs or len(outputs) != len(lses):
        raise ShapeError(
            "merge: outputs and lses must have one entry for each part, at least one, "
            f"got {len(outputs)} and {len(lses)}"
        )
    b, h, i, dv = outputs[0].shape if outputs[0].ndim == 4 else (0, 0, 0, 0)
    sizes = {"b": b, "h": h, "i": i}
    for output, lse in zip(outputs, lses, strict=True):
        check_shape("merge", "outputs", output, "b h i dv", sizes | {"dv": dv})
        check_shape("merge", "lses", lse, "b h i", sizes)
    stacked = torch.stack(tuple(lses))
    empty = (stacked == -torch.inf).all(0)
    # Where there is no key at all, zeros keep the gradients finite.
    stacked = stacked.masked_fill(empty, 0)
    total = stacked.logsumexp(0)
    shares = (stacked - total).exp().unsqueeze(-1)
    merged = sum(share * output for share, output in zip(shares, outputs, strict=True))
    merged = torch.as_tensor(merged).masked_fill(empty.unsqueeze(-1), 0)
    return merged.to(outputs[0].dtype), total.masked_fill(empty, -torch.inf)
