"""The state of a model on several devices under the names of one device, to save and to load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)

from ..checks import check_module
from .head_parallel import PROJECTIONS, CutLayer

__all__ = ["full_state_dict", "load_full_state_dict"]


def full_state_dict(model: nn.Module) -> dict[str, Any]:
    """The state of a model as one device has it: whole tensors, on the CPU, of the same names.

    All ranks call it; rank 0 gets the state, to save it with safetensors say, others nothing.

    Args:
        model: with `HeadParallel`, `ContextParallel` or `fully_shard`, or without.
    """
    check_module("full_state_dict", "model", model)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    for name, layer in model.named_modules():
        if isinstance(layer, CutLayer) and state:
            _pack(state, f"{name}." if name else "")
    return state


def load_full_state_dict(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load the state of one device, such as `full_state_dict` gives, into a model on several.

    Args:
        model: with `HeadParallel`, `ContextParallel` or `fully_shard`, or without.
        state: whole tensors, the same on every rank.

    Raises:
        RuntimeError: if names or shapes are not those of the model.
    """
    check_module("load_full_state_dict", "model", model)
    renamed = dict(state)
    for name, layer in model.named_modules():
        if isinstance(layer, CutLayer):
            _unpack(renamed, f"{name}." if name else "", layer)
    _check_state(get_model_state_dict(model), renamed)
    set_model_state_dict(model, renamed, options=StateDictOptions(full_state_dict=True))


def _check_state(own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise a RuntimeError unless names and shapes are the same, before anything is loaded."""
    wrong = [f"nothing for {name}" for name in own if name not in given]
    wrong += [f"{name}, which it has not" for name in given if name not in own]
    for name, x in given.items():
        wanted = own.get(name)
        if isinstance(wanted, Tensor) and getattr(x, "shape", None) != wanted.shape:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            wrong.append(f"{shape} for {name} of {tuple(wanted.shape)}")
    if wrong:
        raise RuntimeError(
            "load_full_state_dict: state must have the names and shapes of the model, got "
            + "; ".join(wrong)
        )


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
    sizes = [size * layer.ranks.size for size in layer._sizes]
    for kind in ("weight", "bias"):
        name = f"{prefix}in_proj_{kind}"
        packed = state.get(name)
        if isinstance(packed, Tensor) and packed.ndim and len(packed) == sum(sizes):
            del state[name]
            for part, x in zip(PROJECTIONS, packed.split(sizes), strict=True):
                state[f"{prefix}{part}_{kind}"] = x
