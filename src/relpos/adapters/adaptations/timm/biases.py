"""The biases that several models of timm share: its modules `RelPosBias`, `RelPosMlp` and the like.

    s_ij = scale * q_i . k_j + B[y_j - y_i, x_j - x_i]      (y, x): row and column

B is learned (Liu et al. 2021, equation 4), or a small network computes it (Liu et al. 2022,
equation 2). A module is asked for a bias of all pairs; here it gives the one of the offsets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..image_bias import ImageBias
from ..window_attention import bias_of_table

__all__ = ["offset_bias", "unknown_bias"]

_MODULE = "timm.layers.pos_embed_rel"


def offset_bias(rel_pos: Any) -> ImageBias:
    """What `rel_pos.get_bias()` has for each offset.

    Args:
        rel_pos: of timm, of a class for which `unknown_bias` gives None.
    """
    return _BIASES[_class_name(rel_pos)](rel_pos)


def unknown_bias(rel_pos: nn.Module | None) -> str | None:
    """Why a module's bias by offset is not known; None if it is, or there is none.

    Args:
        rel_pos: an attention's module of biases.
    """
    if rel_pos is None or _class_name(rel_pos) in _BIASES:
        return None
    return f"rel_pos must be one of {', '.join(_BIASES)}, got a {type(rel_pos).__name__}"


def _learned(rel_pos: Any) -> ImageBias:
    table = rel_pos.relative_position_bias_table
    if not rel_pos.prefix_tokens:
        return ImageBias(bias_of_table(table, rel_pos.window_size))
    return ImageBias(bias_of_table(table[:-3], rel_pos.window_size), table[-3:])


def _computed(rel_pos: Any) -> ImageBias:
    # In the order of query minus key.
    bias = rel_pos.bias_act(rel_pos.mlp(rel_pos.rel_coords_log).permute(2, 0, 1).flip(1, 2))
    if rel_pos.bias_gain is not None:
        bias = rel_pos.bias_gain * bias
    # A class token has none.
    return ImageBias(bias, bias.new_zeros(3, len(bias)) if rel_pos.prefix_tokens else None)


def _learned_in_order(rel_pos: Any) -> ImageBias:
    table: Tensor = rel_pos.relative_position_bias_table  # (h, m, n), of key minus query
    return ImageBias(table)


_BIASES = {
    "RelPosBias": _learned,
    "RelPosMlp": _computed,
    "RelPosBiasTf": _learned_in_order,
}


def _class_name(rel_pos: nn.Module) -> str:
    """Of timm's class, also where FSDP and parametrizations have put one of their own before it."""
    names = (base.__qualname__ for base in type(rel_pos).__mro__ if base.__module__ == _MODULE)
    return next(names, "")
