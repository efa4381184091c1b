"""x-transformers' layers with a bias for each offset, and which of them are adapted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...adapted import Adapted
from .attend import Attend
from .biases import BIASES, OffsetBias
from .originals import LIBRARY, has, is_not

__all__ = ["Attention", "Layers"]

# What an `Attention` may hold besides, and in words what it does.
_OTHERS = {
    "max_attend_past": "max_attend_past is a mask of all pairs",
    "rel_proj_pos_bias": "a bias of queries (use_rel_proj_pos_bias) is added to that of offsets",
    "data_dependent_alibi": (
        "biases that come from what tokens contain take the place of those of offsets"
    ),
}


class Attention(Adapted):
    """For `Attention`, which runs as before: it hands on to its `Attend` what biases give."""

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if reason := is_not(type(module), "Attention", LIBRARY):
            return reason
        if module.num_mem_kv:
            return "keys of memories (num_mem_kv) have no positions"
        return next((why for name, why in _OTHERS.items() if has(module, name)), None)


class Layers(Adapted):
    """For `AttentionLayers` and its kin, which run as before on a bias for each offset."""

    scheme = "T5 bias, or computed bias, or ALiBi"

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_pos is not None and "a" in module.layer_types

    @classmethod
    def parts_of(cls, module: Any) -> dict[str, type[Adapted]]:
        found: dict[str, type[Adapted]] = {"rel_pos": _bias_of(module)}
        for name in _self_attentions(module):
            found |= {name: Attention, f"{name}.attend": Attend}
        return found

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if has(module, "rotary_pos_emb") or has(module, "polar_pos_emb"):
            return "beside rotary positions it takes positions that are given, and has all pairs"
        if module.residual_attn:
            return "residual_attn hands the scores of all pairs to the next layer"
        if len(list(_self_attentions(module))) < module.layer_types.count("a"):
            return "its self-attention is of another class"
        return None

    @classmethod
    def described(cls, module: Any) -> str:
        return _bias_of(module).words


def _bias_of(layers: Any) -> type[OffsetBias]:
    """What the module of biases is adapted by; it refuses those that are not known."""
    return BIASES.get(type(layers.rel_pos).__qualname__, OffsetBias)


def _self_attentions(layers: Any) -> Iterator[str]:
    """The name in the layers of each `Attention`, or subclass of it, that is handed the bias."""
    for i, kind in enumerate(layers.layer_types):
        if kind == "a":
            for name, module in layers.layers[i][1].named_modules(prefix=f"layers.{i}.1"):
                names = {(base.__module__, base.__qualname__) for base in type(module).__mro__}
                if (LIBRARY, "Attention") in names:
                    yield name
