"""The biases that several models of timm share: its modules `RelPosBias`, `RelPosMlp` and the like.

    s_ij = scale * q_i . k_j + B[y_j - y_i, x_j - x_i]      (y, x): row and column

B is learned (Liu et al. 2021, equation 4), or a small network computes it (Swin v2,
Liu et al. 2022, equation 2). Such a module adds a bias of all pairs to the scores; here it gives
one by offset.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...adapted import Adapted
from ..image_bias import ImageBias
from ..window_attention import bias_of_table

__all__ = ["OffsetBias", "SharedBias"]

_MODULE = "timm.layers.pos_embed_rel"


class OffsetBias(Adapted):
    """For the module of biases that an attention has; called without scores, it gives `ImageBias`.

    The attention calls it, since what has weights come and go does so when a module is called.
    """

    signatures = {"forward": ("self", "attn", "shared_rel_pos"), "get_bias": ("self",)}

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        known = type(module).__module__ == _MODULE and type(module).__qualname__ in _BIASES
        return None if known else f"it must be one of {', '.join(_BIASES)}"

    def forward(self, attn: Tensor | None = None, shared_rel_pos: Any = None) -> Any:
        if attn is not None:
            return self.original_forward(attn, shared_rel_pos)
        return _BIASES[_class_name(self)](self)


class SharedBias(OffsetBias):
    """For that of all layers, which the model asks for a bias and hands to them."""

    def forward(self, attn: Tensor | None = None, shared_rel_pos: Any = None) -> Any:
        if attn is None:
            return super().forward()
        original: Any = super()
        return attn + original.get_bias()

    def get_bias(self) -> ImageBias:
        return self()


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
    """The name of timm's class, behind those that FSDP and parametrizations put before it."""
    names = (base.__qualname__ for base in type(rel_pos).__mro__ if base.__module__ == _MODULE)
    return next(names, "")
