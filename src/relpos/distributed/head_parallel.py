"""Layers of which each rank has some heads: tensor parallelism for relative attention.

    plan = {"attention": HeadParallel(), "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)

As Megatron-LM (Shoeybi et al. 2019, section 3): the input is the same on every rank, the
projections of queries, keys and values give some heads, and the outputs of all are summed. What a
scheme has for each head (tables, projections, slopes) is cut likewise; what heads share lies on
every rank, with gradients summed over them.

Parameters become DTensors over the mesh, so that `fully_shard` over another dimension of it,
optimizers and distributed checkpoints know what they are. A layer's packed `in_proj_weight` becomes
`q_proj_weight`, `k_proj_weight` and `v_proj_weight`, each cut along its heads, and so does its
bias; `full_state_dict` gives them under the names of one device, `load_full_state_dict` takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.func import functional_call
from torch.nn.functional import linear

from ..checks import check_module
from ..errors import ShapeError
from ..layers import MultiheadAttention
from ..ops.dispatch import choose, choose_for_parts
from ..ops.inputs import DropoutOrigin, prepare
from ..positions import Position
from ..terms import GridTerms, Terms
from .derivatives import once_differentiable
from .group import Ranks, resolve_group
from .heads import terms_of_heads

__all__ = ["PROJECTIONS", "CutLayer", "HeadParallel"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class HeadParallel(ParallelStyle):
    """Each rank has some of the heads of every `relpos.layers.MultiheadAttention` in a module.

    For `torch.distributed.tensor.parallel.parallelize_module`. The layer is called as before, with
    the whole input on every rank, and returns the whole output. It may be combined with
    `ContextParallel` over another dimension of the mesh, applied after it, and with `fully_shard`.

    Raises:
        ValueError: if a module has no such layer, the ranks do not divide a layer's heads, or a
            projection is another module's too.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        ranks = resolve_group("HeadParallel", device_mesh)
        check_module("HeadParallel", "module", module)
        if any(isinstance(part, CutLayer) for part in module.modules()):
            raise ValueError(
                "HeadParallel: module must have layers of all heads, got one that is cut already"
            )
        layers = [part for part in module.modules() if type(part) is MultiheadAttention]
        if not layers:
            raise ValueError(
                "HeadParallel: module must have a relpos.layers.MultiheadAttention, "
                f"got {type(module).__name__} without any"
            )
        for layer in layers:
            _check_heads(layer, ranks)
            of_tokens = getattr(layer.attend_elsewhere, "ranks", None)
            if isinstance(of_tokens, Ranks) and of_tokens.shares_ranks(ranks):
                raise ValueError(
                    "HeadParallel: device_mesh must be another dimension of the mesh than that of "
                    "ContextParallel, got one with the same ranks"
                )
        _check_shared(module, layers)
        for layer in layers:
            _cut_layer(layer, device_mesh, ranks)
        return module


def _check_heads(layer: MultiheadAttention, ranks: Ranks) -> None:
    for name in ("num_heads", "num_kv_heads"):
        if getattr(layer, name) % ranks.size:
            raise ValueError(
                f"HeadParallel: {name} must be a multiple of the {ranks.size} ranks, "
                f"got {getattr(layer, name)}"
            )


def _check_shared(module: nn.Module, layers: list[MultiheadAttention]) -> None:
    """Raise if a projection that is to be cut is also another module's: it would be two then."""
    owners: dict[Tensor, str] = {}
    cut = {part for layer in layers for part in (layer, layer.out_proj)}
    for name, part in module.named_modules():
        for own, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            here = f"{name}.{own}" if name else own
            other = owners.setdefault(parameter, here)
            if other != here and (part in cut or _owner(module, other) in cut):
                raise ValueError(
                    f"HeadParallel: {here} must be a parameter of its own, got that of {other}"
                )


def _owner(module: nn.Module, parameter: str) -> nn.Module:
    return module.get_submodule(parameter.rpartition(".")[0])


def _cut_layer(layer: MultiheadAttention, mesh: DeviceMesh, ranks: Ranks) -> None:
    """Change a layer in place."""
    sizes = layer._sizes
    weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    if layer.in_proj_weight is not None:
        weights = [*layer.in_proj_weight.split(sizes)]
    biases = [None] * 3 if layer.in_proj_bias is None else [*layer.in_proj_bias.split(sizes)]
    layer.in_proj_weight = layer.in_proj_bias = None
    for name, weight, bias in zip(PROJECTIONS, weights, biases, strict=True):
        for kind, x in (("weight", weight), ("bias", bias)):
            parameter = None if x is None else _cut(x, mesh, Shard(0))
            layer.register_parameter(f"{name}_{kind}", parameter)
    out_proj = layer.out_proj
    out_proj.register_parameter("weight", _cut(out_proj.weight, mesh, Shard(1)))
    if out_proj.bias is not None:
        out_proj.register_parameter("bias", _cut(out_proj.bias, mesh, Replicate()))
    position = layer.position
    axes = position.head_axes() if isinstance(position, Position) else None
    if position is not None:
        _cut_position(position, axes, layer.num_heads, mesh, ranks)
    layer.__class__ = CutLayer
    out_proj.__class__ = _SummedLinear
    assert isinstance(layer, CutLayer)
    assert isinstance(out_proj, _SummedLinear)
    layer.ranks = out_proj.ranks = ranks
    layer.all_heads, layer.all_kv_heads = layer.num_heads, layer.num_kv_heads
    layer.knows_some_heads = axes is not None
    layer.num_heads //= ranks.size
    layer.num_kv_heads //= ranks.size
    q_size, k_size, v_size = (size // ranks.size for size in sizes)
    layer._sizes = q_size, k_size, v_size


def _cut_position(
    position: nn.Module,
    axes: Mapping[str, int] | None,
    heads: int,
    mesh: DeviceMesh,
    ranks: Ranks,
) -> None:
    """Make a scheme's parameters DTensors, those of each head cut; layers may share it."""
    for name, parameter in list(position.named_parameters()):
        if isinstance(parameter, DTensor):
            continue
        axis = None if axes is None else axes.get(name)
        owner, _, own = name.rpartition(".")
        placement = Replicate() if axis is None else Shard(axis)
        position.get_submodule(owner).register_parameter(own, _cut(parameter, mesh, placement))
    if axes is None:
        return
    for part in position.modules():
        if getattr(part, "heads", None) == heads and not hasattr(part, "all_heads"):
            part.all_heads = heads  # type: ignore[assignment]
            part.heads = heads // ranks.size  # type: ignore[assignment]


def _cut(x: Tensor, mesh: DeviceMesh, placement: Placement) -> nn.Parameter:
    learns = x.requires_grad
    return nn.Parameter(distribute_tensor(x.detach(), mesh, [placement]), requires_grad=learns)


class CutLayer(MultiheadAttention):
    """A layer's heads `first..first + num_heads - 1`; a module becomes one in place."""

    ranks: Ranks
    all_heads: int
    all_kv_heads: int
    knows_some_heads: bool

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As of the layer: the same input and the whole output on every rank."""
        copies = {
            id(x): _SumGradient.apply(x, self.ranks) if isinstance(x, Tensor) else x
            for x in (query, key, value)
        }
        query, key, value = (copies[id(x)] for x in (query, key, value))
        named = dict(zip(_FORWARD_OPTIONS, args, strict=False)) | options
        for name in ("attn_mask", "key_padding_mask"):
            if isinstance(named.get(name), Tensor) and named[name].requires_grad:
                named[name] = _SumGradient.apply(named[name], self.ranks)
        mask = named.get("attn_mask")
        if isinstance(mask, Tensor) and mask.ndim == 3:
            if len(mask) % self.all_heads:
                raise ShapeError(
                    "MultiheadAttention: attn_mask must be (i, j) or (b * h, i, j) with all "
                    f"h={self.all_heads}, got {tuple(mask.shape)}"
                )
            each = mask.unflatten(0, (-1, self.all_heads))
            named["attn_mask"] = each[:, self._first : self._first + self.num_heads].flatten(0, 1)
        average = named.get("average_attn_weights", True)
        if named.get("need_weights", True) and not average:
            raise ValueError(
                "MultiheadAttention: average_attn_weights must be True where heads are cut among "
                "ranks, got False"
            )
        output, weights = super().forward(query, key, value, **named)
        if weights is not None:
            weights = _Sum.apply(weights, self.ranks) / self.ranks.size
        return output, weights

    @property
    def _first(self) -> int:
        return self.ranks.rank * self.num_heads

    @property
    def position_of_heads(self) -> Callable[..., Any] | None:
        """The scheme, called for some heads."""
        return None if self.position is None else _CutPosition(self)

    def _linear(self, part: int, x: Tensor) -> Tensor:
        weight, bias = (getattr(self, f"{PROJECTIONS[part]}_{kind}") for kind in ("weight", "bias"))
        return linear(x, weight.to_local(), None if bias is None else bias.to_local())

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Terms | GridTerms, **options: Any
    ) -> Tensor:
        if not options["dropout"]:
            return super()._attention(q, k, v, terms, **options)
        masks = [options.pop(name) for name in ("mask", "documents", "key_ranges")]
        inputs = prepare("attention", q, k, v, terms, *masks, **options)
        # What `native` drops on one device, if all ranks have the same seed, and else other pairs.
        origin = DropoutOrigin(self.all_heads, self._first, q.shape[2], 0, 0)
        inputs = replace(inputs, dropout_origin=origin)
        backend = choose("auto", inputs)
        if not hasattr(backend, "part"):
            backend = choose_for_parts("auto", inputs)
        return backend.attention(inputs)[0]


_FORWARD_OPTIONS = (
    "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal",
)  # fmt: skip


class _CutPosition:
    """A layer's scheme, called with this rank's heads.

    One that knows some heads is called with them, and with its parts of the parameters. Others are
    called with all heads, of which all but these are zeros.

    Args:
        layer: whose heads are cut.
    """

    _TRAITS: ClassVar = (
        "reads_input", "reads_query_start", "reads_key_start", "reads_shape", "reads_query_shape",
        "shift_invariant",
    )  # fmt: skip

    def __init__(self, layer: CutLayer) -> None:
        self._layer = layer
        for trait in self._TRAITS:
            setattr(self, trait, getattr(layer.position, trait, False))

    def __call__(
        self, q: Tensor, k: Tensor, *x: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor, Terms | GridTerms]:
        layer = self._layer
        if layer.knows_some_heads:
            return self._call(q, k, *x, **options)
        heads, kv_heads = _own_heads(layer, q, k)
        whole_q = _among_zeros(q, heads, layer.all_heads)
        whole_k = _among_zeros(k, kv_heads, layer.all_kv_heads)
        new_q, new_k, terms = self._call(whole_q, whole_k, *x, **options)
        return (
            q if new_q is whole_q else new_q[:, heads],
            k if new_k is whole_k else new_k[:, kv_heads],
            terms_of_heads(terms, range(heads.start, heads.stop), lambda x: x[:, heads]),
        )

    def _call(self, *args: Tensor, **options: Any) -> tuple[Tensor, Tensor, Terms | GridTerms]:
        position = self._layer.position
        assert position is not None
        local = {name: _local(x, self._layer.ranks) for name, x in position.named_parameters()}
        return functional_call(position, local, args, options)


def _local(x: Tensor, ranks: Ranks) -> Tensor:
    """This rank's part of a parameter; of one that ranks share, the gradient is summed."""
    if not isinstance(x, DTensor):
        return _SumGradient.apply(x, ranks)
    shared = all(isinstance(placement, Replicate) for placement in x.placements)
    return _SumGradient.apply(x.to_local(), ranks) if shared else x.to_local()


def _own_heads(layer: CutLayer, q: Tensor, k: Tensor) -> tuple[slice, slice]:
    found = []
    for x in (q, k):
        first = layer.ranks.rank * x.shape[1]
        found.append(slice(first, first + x.shape[1]))
    return found[0], found[1]


def _among_zeros(x: Tensor, heads: slice, count: int) -> Tensor:
    b, _, n, d = x.shape
    before, after = x.new_zeros(b, heads.start, n, d), x.new_zeros(b, count - heads.stop, n, d)
    return torch.cat([before, x, after], 1)


class _SummedLinear(nn.Linear):
    """`sum over ranks of x_r W_r^T`, then the bias; a module becomes one in place."""

    ranks: Ranks

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        assert isinstance(weight, DTensor)
        output = _Sum.apply(linear(x, weight.to_local()), self.ranks)
        if bias is None:
            return output
        assert isinstance(bias, DTensor)
        return output + bias.to_local()


class _SumGradient(torch.autograd.Function):
    """The same tensor, whose gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        d_x = d_x.contiguous().clone()
        with ctx.ranks.exchanging("MultiheadAttention", "gradients of the input"):
            distributed.all_reduce(d_x, group=ctx.ranks.group)
        return d_x, None


class _Sum(torch.autograd.Function):
    """The sum over the ranks, on each of them; the gradient is the same on each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        x = x.contiguous().clone()
        with ranks.exchanging("MultiheadAttention", "outputs"):
            distributed.all_reduce(x, group=ranks.group)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return d_x, None
