"""The state of a model on several devices under the names of one device, to save and to load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.tensor import DTensor

from ..checks import check_flag, check_module, one_line
from .head_parallel.cut_layer import PROJECTIONS, CutLayer
from .ranks.agreement import agree
from .ranks.group import Ranks, all_ranks, resolve_group

__all__ = ["full_state_dict", "load_full_state_dict"]

# What torch leaves out of the names of a state: those of compiled and of checkpointed modules.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


def full_state_dict(model: nn.Module) -> dict[str, Any]:
    """The state of a model as one device has it: whole tensors, on the CPU, of the same names.

    All ranks call it; rank 0 gets the state, to save it with safetensors say, others nothing.

    Args:
        model: with `HeadParallel`, `ContextParallel` or `fully_shard`, or without.
    """
    check_module("full_state_dict", "model", model)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    for prefix, _ in _cut_layers(model):
        if state:
            _pack(state, prefix)
    return state


def load_full_state_dict(
    model: nn.Module, state: Mapping[str, Any], *, from_rank_0: bool = False
) -> None:
    """Load the state of one device, such as `full_state_dict` gives, into a model on several.

    Args:
        model: with `HeadParallel`, `ContextParallel` or `fully_shard`, or without.
        state: whole tensors, the same on every rank.
        from_rank_0: whether only the first of all processes has it, and others give `{}`, as
            `full_state_dict` returns it. Then all processes must call this.

    Raises:
        TypeError: if an argument is of another kind.
        RuntimeError: if names or shapes are not those of the model, or another rank fails. Nothing
            is loaded then.
        ValueError: if ranks that share tensors of the model have states of other names or shapes,
            or another `from_rank_0`; of others nothing is compared, and the one that they miss
            is waited for.
    """
    function = "load_full_state_dict"
    check_flag(function, "from_rank_0", from_rank_0)
    check_module(function, "model", model)
    everybody = all_ranks(function) if from_rank_0 else None
    own = get_model_state_dict(model)
    renamed, error = {}, None
    try:
        if not isinstance(state, Mapping):
            raise TypeError(f"{function}: state must be a mapping, got {one_line(state)}")
        for name, x in state.items():
            # To cut it would be an exchange of all its ranks.
            if isinstance(x, DTensor):
                raise TypeError(
                    f"{function}: state must be of whole tensors, such as full_tensor() gives, "
                    f"got a DTensor for {name}"
                )
        if everybody is None or everybody.rank == 0:
            renamed = _of_cut_layers(model, own, state)
    except Exception as found:
        error = found
    facts = {} if from_rank_0 else {name: _described(x) for name, x in renamed.items()}
    for ranks in _groups(own.values()):
        said = [bool(flag) for (flag,) in agree(ranks, function, {}, (from_rank_0,))]
        if len(set(said)) > 1:
            error = ValueError(
                f"{function}: from_rank_0 must be the same on every rank of the group, got "
                f"{said[0]} on rank 0 and {not said[0]} on rank {said.index(not said[0])}"
            )
            # Those that have it look for this rank among all there are.
            everybody = all_ranks(function)
        try:
            agree(ranks, function, facts, (), error)
        except Exception as found:
            # The ranks of other groups are told, too.
            error = found
    if everybody is not None:
        agree(everybody, function, {}, (), error)
    if error is not None:
        raise error
    # Torch takes a DTensor under one of its names; that all are there was seen to.
    further = dict(_further_names(model))
    for name in further:
        renamed.pop(_without_wrappers(name), None)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=from_rank_0, strict=False)
    set_model_state_dict(model, renamed, options=options)
    for name, first in further.items():  # of a model on meta there are new ones
        owner, _, own = name.rpartition(".")
        model.get_submodule(owner).register_parameter(own, model.get_parameter(first))


def _cut_layers(model: nn.Module) -> Iterator[tuple[str, CutLayer]]:
    """Each, and what its names begin with in a state, which names no wrapper."""
    # A layer with two names has both in a state.
    for name, layer in model.named_modules(remove_duplicate=False):
        if isinstance(layer, CutLayer):
            own = _without_wrappers(name)
            yield f"{own}." if own else "", layer


def _further_names(model: nn.Module) -> Iterator[tuple[str, str]]:
    """All names of each DTensor but the first, each with the first."""
    seen: dict[Tensor, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = seen.setdefault(parameter, name)
        if first != name and isinstance(parameter, DTensor):
            yield name, first


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _groups(state: Iterable[object]) -> list[Ranks]:
    """The groups over which tensors are cut or copied, each once."""
    found: dict[str, Ranks] = {}
    for x in state:
        if isinstance(x, DTensor):
            for group in x.device_mesh.get_all_groups():
                found.setdefault(group.group_name, resolve_group("load_full_state_dict", group))
    return list(found.values())


def _of_cut_layers(
    model: nn.Module, own: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """A state by the names of a model on several devices, of which it has all and no others.

    Raises:
        RuntimeError: if names or shapes are not those of the model.
    """
    if own and not given:
        raise RuntimeError(
            "load_full_state_dict: state must have the names of the model, got none; "
            "full_state_dict gives it to rank 0 alone, which from_rank_0=True takes"
        )
    state, wanted = dict(given), {name: _shape(x) for name, x in own.items()}
    for prefix, _ in _cut_layers(model):
        _pack_shapes(wanted, state, prefix)
    wrong = [f"nothing for {name}" for name in wanted if name not in state]
    wrong += [f"{name}, which it has not" for name in state if name not in wanted]
    for name, shape in wanted.items():
        x = state.get(name)
        if shape is not None and name in state:
            if not isinstance(x, Tensor) or x.shape != shape:
                got = tuple(x.shape) if isinstance(x, Tensor) else one_line(x)
                wrong.append(f"{got} for {name} of {tuple(shape)}")
            elif x.is_meta:
                wrong.append(f"a meta tensor, which has no numbers, for {name}")
    if wrong:
        raise RuntimeError(
            "load_full_state_dict: state must have the names and shapes of the model, got "
            + "; ".join(wrong)
        )
    for prefix, layer in _cut_layers(model):
        _unpack(state, prefix, layer)
    return state


def _shape(x: object) -> tuple[int, ...] | None:
    return tuple(x.shape) if isinstance(x, Tensor) else None


def _described(x: object) -> object:
    return (tuple(x.shape), str(x.dtype)) if isinstance(x, Tensor) else type(x).__name__


def _pack_shapes(
    wanted: dict[str, tuple[int, ...] | None], state: Mapping[str, Any], prefix: str
) -> None:
    """The shape of a packed projection in place of those of the three, unless a state has these."""
    for kind in ("weight", "bias"):
        packed = f"{prefix}in_proj_{kind}"
        names = [f"{prefix}{part}_{kind}" for part in PROJECTIONS]
        shapes = [wanted[name] for name in names if name in wanted]
        separate = packed not in state and any(name in state for name in names)
        if separate or len(shapes) < len(names):
            continue
        if None in shapes or len({shape[1:] for shape in shapes if shape is not None}) > 1:
            continue
        for name in names:
            del wanted[name]
        lengths = [shape[0] for shape in shapes if shape is not None]
        assert shapes[0] is not None
        wanted[packed] = (sum(lengths), *shapes[0][1:])


def _pack(state: dict[str, Any], prefix: str) -> None:
    """The names of one device in place of those of a cut layer whose widths are the same."""
    for kind in ("weight", "bias"):
        names = [f"{prefix}{part}_{kind}" for part in PROJECTIONS]
        tensors = [state[name] for name in names if name in state]
        if len(tensors) < len(names) or len({x.shape[1:] for x in tensors}) > 1:
            continue
        for name in names:
            del state[name]
        state[f"{prefix}in_proj_{kind}"] = torch.cat(tensors)


def _unpack(state: dict[str, Any], prefix: str, layer: CutLayer) -> None:
    """The names of a cut layer in place of those of one device."""
    sizes = list(layer.all_sizes)
    for kind in ("weight", "bias"):
        packed = state.pop(f"{prefix}in_proj_{kind}", None)
        if packed is not None:
            for part, x in zip(PROJECTIONS, packed.split(sizes), strict=True):
                state[f"{prefix}{part}_{kind}"] = x
