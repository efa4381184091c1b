"""Partial results over parts of the keys, put together exactly."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import check_device, check_floating, check_shape, one_line
from ..errors import ShapeError

__all__ = ["merge"]


def merge(
    outputs: Iterable[Float[Tensor, "b h i dv"]], lses: Iterable[Float[Tensor, "b h i"]]
) -> tuple[Float[Tensor, "b h i dv"], Float[Tensor, "b h i"]]:
    """`o = sum_n exp(lse_n - lse) o_n` with `lse = log sum_n exp(lse_n)`: attention over all keys.

    Each part comes from `attention(..., return_lse=True)` with the same queries and some of the
    keys. Positions are the caller's: a part whose first key is number `a` has
    `query_start = start - a`, where `start` is the position of the first query, and the
    `key_ranges` of the whole less `a`. Differentiable.

    Exact as far as the parts are: in 16 bits each comes rounded, which their gradients then see.

    An attention sink, a key of logit `s` without a value, is the merge with an output of zeros
    and a log-sum-exp of `s`: `output * torch.sigmoid(lse - s).unsqueeze(-1)`.

    Args:
        outputs: of the parts, in any sequence, or stacked along a first axis.
        lses: their natural log-sum-exps, `-inf` where a row has no key.

    Returns:
        The output, in the dtype of the first part, and its log-sum-exp.

    Raises:
        ShapeError: if the parts differ in shape or device, are not floating point, are no dense
            tensors, or there is none.
        TypeError: if a part is no tensor, or `outputs` or `lses` is no sequence of them.

    >>> q, k = torch.ones(1, 1, 1, 2), torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]]])
    >>> from relpos import attention
    >>> parts = [attention(q, x, x, return_lse=True) for x in (k[:, :, :1], k[:, :, 1:])]
    >>> output, _ = merge(*zip(*parts))
    >>> torch.allclose(output, attention(q, k, k))
    True
    """
    outputs = _parts("outputs", outputs, "n b h i dv")
    lses = _parts("lses", lses, "n b h i")
    _check(outputs, lses)
    stacked = torch.stack(lses)
    empty = (stacked == -torch.inf).all(0)
    # Where there is no key at all, zeros keep the gradients finite.
    stacked = stacked.masked_fill(empty, 0)
    # Taken near 0, where `exp(stacked - total)` and the derivative of `logsumexp` have digits: a
    # total of -1e9, under an additive mask, is rounded by more than the parts differ.
    shift = stacked.amax(0).detach()
    total = shift + (stacked - shift).logsumexp(0)
    shares = stacked.softmax(0).masked_fill(empty, 0).unsqueeze(-1)
    # A part without a key has no share, whatever stands in its output.
    parts = [
        torch.where(share == 0, 0, output) for share, output in zip(shares, outputs, strict=True)
    ]
    merged = shares[0] * parts[0]
    for share, part in zip(shares[1:], parts[1:], strict=True):
        merged = torch.addcmul(merged, share, part)
    return merged.to(outputs[0].dtype), total.masked_fill(empty, -torch.inf)


def _parts(argument: str, parts: Iterable[Tensor], axes: str) -> tuple[Tensor, ...]:
    """The parts one by one; stacked, they have the named axes."""
    if isinstance(parts, Tensor):
        check_shape("merge", argument, parts, axes)
        return parts.unbind()
    if not isinstance(parts, Iterable):
        raise TypeError(
            f"merge: {argument} must be tensors, one for each part, got {one_line(parts)}"
        )
    return tuple(parts)


def _check(outputs: tuple[Tensor, ...], lses: tuple[Tensor, ...]) -> None:
    if not outputs or len(outputs) != len(lses):
        raise ShapeError(
            "merge: outputs and lses must have one entry for each part, at least one, "
            f"got {len(outputs)} and {len(lses)}"
        )
    for output, lse in zip(outputs, lses, strict=True):
        for name, tensor in (("outputs", output), ("lses", lse)):
            check_floating("merge", name, tensor)
            check_device("merge", name, tensor, outputs[0], "the first part is")
    check_shape("merge", "outputs", outputs[0], "b h i dv")
    b, h, i, dv = outputs[0].shape
    sizes = {"b": b, "h": h, "i": i}
    for output, lse in zip(outputs, lses, strict=True):
        check_shape("merge", "outputs", output, "b h i dv", sizes | {"dv": dv})
        check_shape("merge", "lses", lse, "b h i", sizes)
