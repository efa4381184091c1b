"""`relpos.attention` of DTensors: each rank computes with its sequences and heads.

Sequences of a batch and heads do not look at each other, so what is cut along them needs no
exchange. What is cut along its tokens does, and is refused: `relpos.distributed` is for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from ..autocast import without_autocast
from ..checks import check_integers
from ..errors import BackendError, ShapeError
from ..terms import GridTerms, Terms
from .argument_checks import check_kinds
from .dispatch import choose
from .inputs import DropoutOrigin, prepare
from .locality import AnyKeyRanges

__all__ = ["attention_of_dtensors"]

_BATCH, _HEADS, _TOKENS = 0, 1, 2


def attention_of_dtensors(
    attend: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | GridTerms,
    tensors: dict[str, Tensor | None],
    key_ranges: AnyKeyRanges,
    **options: Any,
) -> Any:
    """What `attend` gives, as DTensors that are cut as `q` is.

    Args:
        attend: `relpos.attention`.
        q: queries, a DTensor, as are `k` and `v`.
        k: keys.
        v: values.
        terms: the tables, of all heads: plain tensors, whose gradients are those of this rank's
            part, or DTensors, whose gradients are whole.
        tensors: `mask`, `documents` and `query_documents` by name, for all sequences and heads.
        key_ranges: for all sequences too.
        options: what else `attend` is given.

    With dropout the rank that is first in the mesh draws the seed, and the same pairs are dropped
    however the tensors are cut.

    Raises:
        BackendError: if they are cut along other axes than batch and heads, or unevenly.
        ShapeError: if a table or a mask has neither all heads or sequences nor one for all.
        TypeError: if only some of the tensors are DTensors, or one is of another kind.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, DTensor):
            raise TypeError(
                f"attention: {name} must be a DTensor, as others of the tensors are, "
                f"got {type(x).__name__}"
            )
    check_kinds("attention", q, k, v, terms, **tensors)
    assert isinstance(q, DTensor)
    for name, x in (("q", q), ("k", k), ("v", v)):
        assert isinstance(x, DTensor)
        _check_placements(name, x, q)
    cut = _Cut(q)
    own: dict[str, Any] = {}
    for name, x in tensors.items():
        # The batch and the heads of a mask are its last axes but three and but two.
        axes = (x.ndim - 4, x.ndim - 3) if x is not None and name == "mask" else (0, -1)
        own[name] = None if x is None else cut.part(name, x, *axes)
    own["key_ranges"] = _key_ranges(key_ranges, cut)
    local = [cut.local(x) for x in (q, k, v)]
    if options["dropout"]:
        results = _with_dropout(cut, local, _terms(terms, cut), own, **options)
    else:
        results = attend(*local, _terms(terms, cut), **own, **options)
    if isinstance(results, Tensor):
        return cut.wrap(results)
    return tuple(cut.wrap(x) for x in results)


def _with_dropout(
    cut: _Cut,
    local: list[Tensor],
    terms: Terms | GridTerms,
    own: dict[str, Any],
    *,
    backend: str,
    return_lse: bool,
    **options: Any,
) -> Any:
    """This rank's part of a call of all sequences and heads, with what that call drops."""
    q, k, v = local
    inputs = prepare("attention", q, k, v, terms, **own, return_lse=return_lse, **options)
    (first_batch, _), (first_head, _) = cut.runs
    heads = cut.whole[1]
    # Heads are counted on from sequence to sequence.
    origin = DropoutOrigin(heads, first_batch * heads + first_head, q.shape[2], 0, 0)
    inputs = replace(inputs, seed=cut.seed(q.device), dropout_origin=origin)
    with without_autocast(q):
        output, lse = choose(backend, inputs).attention(inputs)
    return (output, lse) if return_lse else output


def _check_placements(name: str, x: DTensor, q: Tensor) -> None:
    assert isinstance(q, DTensor)
    if x.device_mesh != q.device_mesh:
        raise BackendError(
            f"attention: {name} must be on the mesh of q, {q.device_mesh}, got {x.device_mesh}"
        )
    for own, other in zip(x.placements, q.placements, strict=True):
        if own == Shard(_TOKENS):
            raise BackendError(
                f"attention: {name} must be cut along batch or heads, got one cut along its "
                "tokens, which relpos.distributed.attention takes: give it to_local() and the "
                "mesh as group"
            )
        if not isinstance(own, Replicate) and own not in (Shard(_BATCH), Shard(_HEADS)):
            raise BackendError(
                f"attention: {name} must be cut along batch or heads or not at all, got {own}"
            )
        # One key head is that of every query head.
        shared = isinstance(own, Replicate) and other == Shard(_HEADS) and x.shape[_HEADS] == 1
        if own != other and not shared:
            raise BackendError(
                f"attention: {name} must be cut as q is, {q.placements}, got {x.placements}"
            )
    for axis, what in ((_BATCH, "sequences"), (_HEADS, "heads")):
        sizes = zip(x.device_mesh.shape, x.placements, strict=True)
        parts = prod(size for size, own in sizes if own == Shard(axis))
        if x.shape[axis] % parts:
            raise BackendError(
                f"attention: {name} must have a multiple of {parts} {what}, as many as are cut, "
                f"got {x.shape[axis]}"
            )


class _Cut:
    """Which sequences and heads this rank has.

    Args:
        q: queries.
    """

    def __init__(self, q: DTensor) -> None:
        self.mesh: DeviceMesh = q.device_mesh
        self.placements = q.placements
        self.whole = q.shape[_BATCH], q.shape[_HEADS]
        begins, counts = [0, 0], list(self.whole)
        for dim, placement in enumerate(self.placements):
            if isinstance(placement, Shard):
                counts[placement.dim] //= self.mesh.size(dim)
                begins[placement.dim] += self.mesh.get_local_rank(dim) * counts[placement.dim]
        self.runs = tuple(zip(begins, counts, strict=True))
        # Over which gradients of what is whole on every rank are to be summed.
        cut_dims = [n for n, each in enumerate(self.placements) if isinstance(each, Shard)]
        self.groups = [self.mesh.get_group(n) for n in cut_dims]

    def local(self, x: Tensor) -> Tensor:
        """This rank's part of `q`, `k` or `v`; what others share gets the gradients of all."""
        assert isinstance(x, DTensor)
        shared = [
            Partial() if isinstance(own, Replicate) and isinstance(other, Shard) else own
            for own, other in zip(x.placements, self.placements, strict=True)
        ]
        return x.to_local(grad_placements=shared)

    def seed(self, device: torch.device) -> Tensor:
        """One that all ranks of the mesh have."""
        seed = torch.randint(1 << 62, (), device="cpu").to(device)
        for dim in range(self.mesh.ndim):
            group = self.mesh.get_group(dim)
            distributed.broadcast(seed, distributed.get_global_rank(group, 0), group=group)
        return seed

    def part(self, name: str, x: Tensor, batch_axis: int, head_axis: int) -> Tensor:
        """This rank's part of what all sequences and heads have, or of one for all of them.

        Args:
            name: what users call it.
            x: plain, or a DTensor.
            batch_axis: that of the sequences; negative for none.
            head_axis: that of the heads, likewise.
        """
        if isinstance(x, DTensor):
            x = x.redistribute(placements=[Replicate()] * self.mesh.ndim).to_local()
            x = _SumGradient.apply(x, self.groups)
        for what, axis, whole, (begin, count) in zip(
            ("sequences", "heads"), (batch_axis, head_axis), self.whole, self.runs, strict=True
        ):
            if not 0 <= axis < x.ndim or x.shape[axis] == 1:
                continue
            if x.shape[axis] != whole:
                raise ShapeError(
                    f"attention: {name} must have all {whole} {what} of the DTensor q, or one for "
                    f"all of them, got {x.shape[axis]}"
                )
            if count != whole:
                x = x.narrow(axis, begin, count)
        return x

    def wrap(self, x: Tensor) -> DTensor:
        """A result, cut as `q` is."""
        return DTensor.from_local(x, self.mesh, self.placements, run_check=False)


def _terms(terms: Terms | GridTerms, cut: _Cut) -> Terms | GridTerms:
    """The terms of this rank's sequences and heads."""

    def of_axis(axis: Terms) -> Terms:
        tables = {
            name: table.map(partial(cut.part, f"terms.{name}.rows", batch_axis=-1, head_axis=0))
            for name, table in axis.tables.items()
        }
        q_rel = axis.q_rel
        if isinstance(q_rel, DTensor):
            q_rel = cut.local(q_rel) if q_rel.placements == cut.placements else q_rel
        return Terms(**tables, q_rel=None if q_rel is None else _q_rel(q_rel, cut))

    if isinstance(terms, Terms):
        return of_axis(terms)
    joint = terms.joint_bias
    return GridTerms(
        terms.shape,
        tuple(of_axis(axis) for axis in terms.axes),
        None if joint is None else cut.part("terms.joint_bias", joint, -1, 0),
        terms.query_shape,
        terms.prefix,
    )


def _key_ranges(key_ranges: AnyKeyRanges, cut: _Cut) -> AnyKeyRanges:
    """The ranges of this rank's sequences."""

    def part(name: str, ranges: Tensor | None) -> Tensor | None:
        if ranges is None:
            return None
        check_integers("attention", name, ranges)
        return cut.part(name, ranges, _BATCH, -1)

    if not isinstance(key_ranges, Sequence):
        return part("key_ranges", key_ranges)
    return [part(f"key_ranges[{axis}]", ranges) for axis, ranges in enumerate(key_ranges)]


def _q_rel(q_rel: Tensor, cut: _Cut) -> Tensor:
    counts = tuple(count for _, count in cut.runs)
    if not isinstance(q_rel, DTensor) and tuple(q_rel.shape[:2]) == counts:
        return q_rel
    return cut.part("terms.q_rel", q_rel, _BATCH, _HEADS)


class _SumGradient(torch.autograd.Function):
    """The same tensor, whose gradient is summed over some groups of ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: list[distributed.ProcessGroup]) -> Tensor:
        ctx.groups = groups
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        d_x = d_x.contiguous().clone()
        for group in ctx.groups:
            distributed.all_reduce(d_x, group=group)
        return d_x, None
