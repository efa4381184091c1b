"""Layers of which each rank has some heads: tensor parallelism for relative attention.

    plan = {"attention": HeadParallel(), "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)

As Megatron-LM (Shoeybi et al. 2019, section 3): the input is the same on every rank, the
projections of queries, keys and values give some heads, and the outputs of all are summed. What a
scheme has for each head (tables, projections, slopes) is cut likewise; what heads share lies on
every rank, with gradients summed over them. So do the projections of keys and values where there
are fewer key heads than ranks: each rank reads those rows that its query heads share.

Between such layers tokens may be cut among the same ranks (`token_layouts.py`):

    plan = {
        "attention_norm": SequenceParallel(),
        "attention": HeadParallel(input_layouts=Shard(1), output_layouts=Shard(1)),
        "mlp_norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel(output_layouts=Shard(1)),
    }

Parameters become DTensors over the mesh, so that `fully_shard` over another dimension of it,
optimizers and distributed checkpoints know what they are. A layer's packed `in_proj_weight` becomes
`q_proj_weight`, `k_proj_weight` and `v_proj_weight`, each cut along its heads, and so does its
bias; `full_state_dict` gives them under the names of one device, `load_full_state_dict` takes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from ...adapters.adapted import Adapted
from ...checks import check_flag, check_module
from ...layers import MultiheadAttention
from ...positions import Position
from ..positions import check_gathered
from ..ranks.agreement import agree
from ..ranks.group import Ranks, resolve_group
from .cut_layer import PROJECTIONS, CutLayer, PartialLinear
from .token_layouts import TokenLayouts, check_token_layouts

__all__ = ["HeadParallel"]

_WHOLE = Replicate()
_DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip


class HeadParallel(ParallelStyle):
    """Each rank has some of the heads of every `relpos.layers.MultiheadAttention` in a module.

    For `torch.distributed.tensor.parallel.parallelize_module`. The layer is called as before, with
    the whole input on every rank, and returns the whole output, unless it is told otherwise: as
    torch's styles say it, tokens may be cut before it, after it, or both. Masks, documents and
    ranges are of all tokens always. It may be combined with
    `ContextParallel` over another dimension of the mesh, applied after it, and with `fully_shard`
    (not with DistributedDataParallel, which takes no DTensors). Where anything else of the model is
    dropped out in training, the ranks must have the same random numbers: one `torch.manual_seed`.
    `relpos.distributed.clip_grad_norm_` clips gradients.

    Args:
        input_layouts: how query, key and value lie, where they are plain tensors: `Replicate()`,
            whole on every rank, or `Shard(n)`, cut along the axis n of tokens, in the order of
            the ranks; one for all, or three. DTensors of either kind are taken as they say.
        output_layouts: likewise of the output; it has the query's tokens where both are cut.
            Weights are whole on every rank, and so is a loss of them to be.
        use_local_output: whether the output is a plain tensor; else a DTensor, for which a plain
            query is to be cut as `torch.chunk` cuts.
        check: whether the ranks first compare their arguments, and tell each other whether they
            succeeded before their outputs are summed: two small exchanges for each layer. Without
            it a rank that is called otherwise, or fails, leaves the others to the time limit of
            their process group, and ranks must have equal numbers of what is cut.

    Raises:
        ValueError: if a module has no such layer, the ranks do not divide a layer's heads, its key
            heads are neither divided by the ranks nor divide them, a parameter that is to be cut
            is another module's too, or a layout is of another kind. Layers may share a scheme, and
            schemes of layers that are cut by one call may share tables.
        TypeError: if a layout is no placement, or a flag no flag.
        RuntimeError: if another rank has something against its module.
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | tuple[Placement, Placement, Placement] = _WHOLE,
        output_layouts: Placement = _WHOLE,
        use_local_output: bool = True,
        check: bool = True,
    ) -> None:
        super().__init__()
        check_flag("HeadParallel", "use_local_output", use_local_output)
        check_flag("HeadParallel", "check", check)
        self.input_layouts = check_token_layouts("HeadParallel", input_layouts, output_layouts)
        self.output_layouts, self.use_local_output = output_layouts, use_local_output
        self.check = check

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(device_mesh, DeviceMesh):
            raise TypeError(
                f"HeadParallel: device_mesh must be a DeviceMesh, got {type(device_mesh).__name__}"
            )
        ranks = resolve_group("HeadParallel", device_mesh)
        layers, error = {}, None
        try:
            layers = _layers(module, device_mesh, ranks)
        except Exception as found:
            error = found
        facts = {
            name: {own: tuple(x.shape) for own, x in layer.named_parameters()}
            for name, layer in layers.items()
        }
        agree(ranks, "HeadParallel", facts, (), error)
        # What has two names, in one layer or in several, stays one.
        made: dict[Tensor, nn.Parameter] = {}
        dropouts = tuple(part for part in module.modules() if isinstance(part, _DROPOUTS))
        for layer in layers.values():
            _cut_layer(layer, device_mesh, ranks, made, self, dropouts)
        return module

    def __repr__(self) -> str:
        return (
            f"HeadParallel(input_layouts={self.input_layouts}, "
            f"output_layouts={self.output_layouts}, use_local_output={self.use_local_output}, "
            f"check={self.check})"
        )


def _layers(module: nn.Module, mesh: DeviceMesh, ranks: Ranks) -> dict[str, MultiheadAttention]:
    """The layers that are to be cut, by name."""
    check_module("HeadParallel", "module", module)
    if any(isinstance(part, CutLayer) for part in module.modules()):
        raise ValueError(
            "HeadParallel: module must have layers of all heads, got one that is cut already"
        )
    layers = {
        f"module.{name}" if name else "module": part
        for name, part in module.named_modules()
        if type(part) is MultiheadAttention
    }
    if not layers:
        adapted = any(isinstance(part, Adapted) for part in module.modules())
        hint = "; adapted models are cut by torch's ColwiseParallel and RowwiseParallel"
        raise ValueError(
            "HeadParallel: module must have a relpos.layers.MultiheadAttention, "
            f"got {type(module).__name__} without any{hint if adapted else ''}"
        )
    for name, layer in layers.items():
        _check_heads(layer, ranks)
        _check_whole(name, layer, mesh)
        of_tokens = getattr(layer.attend_elsewhere, "ranks", None)
        if isinstance(of_tokens, Ranks) and of_tokens.shares_ranks(ranks):
            raise ValueError(
                "HeadParallel: device_mesh must be another dimension of the mesh than that of "
                "ContextParallel, got one with the same ranks"
            )
    _check_shared(module, list(layers.values()))
    return layers


def _check_heads(layer: MultiheadAttention, ranks: Ranks) -> None:
    if layer.num_heads % ranks.size:
        raise ValueError(
            f"HeadParallel: num_heads must be a multiple of the {ranks.size} ranks, "
            f"got {layer.num_heads}"
        )
    if layer.num_kv_heads % ranks.size and ranks.size % layer.num_kv_heads:
        raise ValueError(
            f"HeadParallel: num_kv_heads must be a multiple of the {ranks.size} ranks, or divide "
            f"them, got {layer.num_kv_heads}"
        )


def _check_whole(name: str, layer: MultiheadAttention, mesh: DeviceMesh) -> None:
    """Raise unless the projections are plain ones of whole tensors, and the scheme of those or cut.

    One that several layers share may have been cut with another of them, over the same mesh.
    """
    check_gathered("HeadParallel", layer.position)
    if type(layer.out_proj) is not nn.Linear:
        raise ValueError(
            f"HeadParallel: {name}.out_proj must be a torch.nn.Linear, of which each rank computes "
            f"a part of the sum, got {type(layer.out_proj).__name__}"
        )
    for own, x in layer.named_parameters():
        if isinstance(x, DTensor) and not (own.startswith("position.") and x.device_mesh == mesh):
            raise ValueError(
                f"HeadParallel: {name}.{own} must be a whole tensor (fully_shard comes after it), "
                "got DTensor"
            )


def _check_shared(module: nn.Module, layers: list[MultiheadAttention]) -> None:
    """Raise if a parameter that is to be cut is also another's: it would be two then.

    Schemes of the layers may share what they cut alike.
    """
    owners: dict[Tensor, str] = {}
    cut = {part for layer in layers for part in (layer, layer.out_proj)}
    axes: dict[tuple[nn.Module, str], int | None] = {}
    for layer in layers:
        of_scheme = _head_axes(layer.position)
        for prefix, part in () if layer.position is None else layer.position.named_modules():
            for own, _ in part.named_parameters(recurse=False, remove_duplicate=False):
                name = f"{prefix}.{own}" if prefix else own
                axes[part, own] = None if of_scheme is None else of_scheme.get(name)
    for name, part in module.named_modules():
        for own, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            here = f"{name}.{own}" if name else own
            other = owners.setdefault(parameter, here)
            if other == here:
                continue
            owner, _, others = other.rpartition(".")
            pair = (part, own), (module.get_submodule(owner), others)
            if any(each in cut for each, _ in pair) or any(each in axes for each in pair):
                alike = all(each in axes for each in pair) and axes[pair[0]] == axes[pair[1]]
                if not alike:
                    raise ValueError(
                        f"HeadParallel: {here} must be a parameter of its own, got that of {other}"
                    )


def _head_axes(position: nn.Module | None) -> Mapping[str, int] | None:
    return position.head_axes() if isinstance(position, Position) else None


def _cut_layer(
    layer: MultiheadAttention,
    mesh: DeviceMesh,
    ranks: Ranks,
    made: dict[Tensor, nn.Parameter],
    style: HeadParallel,
    dropouts: tuple[nn.Module, ...],
) -> None:
    """Change a layer in place.

    Args:
        layer: to be cut.
        mesh: of the ranks.
        ranks: which have some heads each.
        made: what parameters of schemes have become; more are added.
        style: how it is to be cut.
        dropouts: of the module whose layers are cut.
    """
    sizes = layer._sizes
    weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    if layer.in_proj_weight is not None:
        weights = [*layer.in_proj_weight.split(sizes)]
    biases = [None] * 3 if layer.in_proj_bias is None else [*layer.in_proj_bias.split(sizes)]
    layer.in_proj_weight = layer.in_proj_bias = None
    # Ranks that share a key head have all of its projection, and each a part of its gradient.
    of_keys = Replicate() if layer.num_kv_heads % ranks.size else Shard(0)
    placements = (Shard(0), of_keys, of_keys)
    for name, weight, bias, place in zip(PROJECTIONS, weights, biases, placements, strict=True):
        for kind, x in (("weight", weight), ("bias", bias)):
            parameter = None if x is None else _dtensor_parameter(x, mesh, place)
            layer.register_parameter(f"{name}_{kind}", parameter)
    out_proj = layer.out_proj
    out_proj.register_parameter("weight", _dtensor_parameter(out_proj.weight, mesh, Shard(1)))
    if out_proj.bias is not None:
        out_proj.register_parameter("bias", _dtensor_parameter(out_proj.bias, mesh, Replicate()))
    position = layer.position
    axes = _head_axes(position)
    if position is not None:
        _cut_position(position, axes, layer.num_heads, mesh, ranks, made)
    layer.__class__ = CutLayer
    out_proj.__class__ = PartialLinear
    assert isinstance(layer, CutLayer)
    layer.ranks, layer.check = ranks, style.check
    layer.layouts = TokenLayouts(
        mesh, style.input_layouts, style.output_layouts, style.use_local_output
    )
    layer.dropouts_around = dropouts
    layer.all_heads, layer.all_kv_heads = layer.num_heads, layer.num_kv_heads
    layer.knows_some_heads = axes is not None
    layer.all_sizes = sizes
    layer.num_heads //= ranks.size
    layer.num_kv_heads = max(layer.num_kv_heads // ranks.size, 1)
    heads, kv_heads = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
    layer._sizes = heads, kv_heads, kv_heads


def _cut_position(
    position: nn.Module,
    axes: Mapping[str, int] | None,
    heads: int,
    mesh: DeviceMesh,
    ranks: Ranks,
    made: dict[Tensor, nn.Parameter],
) -> None:
    """Make a scheme's parameters DTensors, those of each head cut; layers may share it."""
    # One parameter may have several names.
    for name, parameter in list(position.named_parameters(remove_duplicate=False)):
        if isinstance(parameter, DTensor):
            continue
        axis = None if axes is None else axes.get(name)
        owner, _, own = name.rpartition(".")
        placement = Replicate() if axis is None else Shard(axis)
        if parameter not in made:
            made[parameter] = _dtensor_parameter(parameter, mesh, placement)
        position.get_submodule(owner).register_parameter(own, made[parameter])
    if axes is None:
        return
    for part in position.modules():
        if getattr(part, "heads", None) == heads and not hasattr(part, "all_heads"):
            part.all_heads = heads  # type: ignore[assignment]
            part.heads = heads // ranks.size  # type: ignore[assignment]


def _dtensor_parameter(x: Tensor, mesh: DeviceMesh, placement: Placement) -> nn.Parameter:
    learns = x.requires_grad
    return nn.Parameter(distribute_tensor(x.detach(), mesh, [placement]), requires_grad=learns)
