"""Clipping gradients where some parameters are cut over a mesh and others are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import inf

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.nn.utils import get_total_norm

from ..checks import one_line

__all__ = ["clip_grad_norm_"]


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """As `torch.nn.utils.clip_grad_norm_`, which takes no tensors of different meshes together.

    Under `HeadParallel` the parameters of attention are DTensors and others are not; `fully_shard`
    after it leaves two kinds of meshes. Every gradient counts once, whole. All ranks call it with
    the same parameters.

    Args:
        parameters: of which those with gradients are clipped, in place.
        max_norm: of all gradients together.
        norm_type: p of the p-norm, above 0; `inf` or `"inf"` for the largest number.
        error_if_nonfinite: whether a norm that is NaN or infinite is an error.
        foreach: whether norms are taken of many tensors at a time; None: where that is faster.

    Returns:
        The norm `()` of all gradients before, the same on every rank.

    Raises:
        ValueError: if `norm_type` is not above 0.
        RuntimeError: if the norm is not finite and `error_if_nonfinite` says so.
    """
    power = inf if norm_type == "inf" else norm_type
    if not (isinstance(power, int | float) and power > 0):
        raise ValueError(f"clip_grad_norm_: norm_type must be above 0, got {one_line(norm_type)}")
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [x.grad for x in parameters if x.grad is not None]
    alike: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        cut = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        alike.setdefault(cut, []).append(gradient)
    norms = [_norm(some, power, foreach) for some in alike.values()]
    total = get_total_norm([norm.to(norms[0].device) for norm in norms], power)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"clip_grad_norm_: the {power}-norm of the gradients must be finite, got {total.item()}"
        )
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for own in map(_own, gradients):
        own.mul_(factor.to(own.device))
    return total


def _norm(gradients: Sequence[Tensor], power: float, foreach: bool | None) -> Tensor:
    """The norm `()` of whole gradients, which are all cut in the same way, or not."""
    first = gradients[0]
    if isinstance(first, DTensor) and any(each.is_partial() for each in first.placements):
        # A sum that was not taken yet.
        gradients = [
            x.redistribute(placements=[_summed(each) for each in x.placements])
            for x in gradients
            if isinstance(x, DTensor)
        ]
        first = gradients[0]
    # A rank may have nothing of some, or of all. A power is too large for 16 bits.
    own = [x for x in map(_own, gradients) if x.numel()]
    dtype = reduce(torch.promote_types, (x.dtype for x in gradients), torch.float32)
    norm = get_total_norm(own, power, foreach=foreach).to(_own(first).device, dtype)
    if not isinstance(first, DTensor):
        return norm
    norm = norm if power == inf else norm**power
    kind = distributed.ReduceOp.MAX if power == inf else distributed.ReduceOp.SUM
    for axis, placement in enumerate(first.placements):
        if not isinstance(placement, Replicate):
            distributed.all_reduce(norm, kind, group=first.device_mesh.get_group(axis))
    return norm if power == inf else norm ** (1 / power)


def _own(x: Tensor) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def _summed(placement: Placement) -> Placement:
    return Replicate() if placement.is_partial() else placement
