"""The second Inkling (Thinking Machines 2026): the first one's bias, and a sink for each query.

The sink is one more score with a value of zero. The module that mixes the profiles makes the
coefficients, too, and the model hands it the distances of all pairs, which are left out here. Some
models go through their middle layers several times, each with keys of its own in the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor, nn

from ..adapted import Adapted
from ..cache_argument import takes_cache
from .inkling import BaseAttention

__all__ = ["FullAttention", "RelativePositionBias", "SlidingAttention", "TextModel"]

# What an adapted model has embedded has this attribute, and the function that heeds it.
_NEEDS_NO_DISTANCES = "_relpos_needs_no_distances"


class RelativePositionBias(Adapted):
    """For `Inkling2RelativePositionBias` and `Inkling2LoopRelativePositionBias`.

    Of more than one query it gives the coefficients, `(1, b, h, i, d_rel)`; called with None, as
    Inkling's, the profiles.
    """

    signatures = {"forward": ("self", "hidden_states", "relative_distance", "position_ids")}
    together = True
    num_heads: int
    linear: nn.Module
    norm: nn.Module
    proj: nn.Parameter

    def forward(
        self,
        hidden_states: Tensor | None = None,
        relative_distance: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        if hidden_states is None:
            return self.proj.clone()
        if hidden_states.shape[1] == 1:
            return super().forward(hidden_states, relative_distance, position_ids)
        coefficients = self.linear(hidden_states).unflatten(-1, (self.num_heads, -1))
        return self.norm(coefficients, position_ids).transpose(1, 2)[None]


class _Attention(BaseAttention):
    relative_position_bias: nn.Module

    def profiles(self) -> Tensor:
        return self.relative_position_bias(None)


class SlidingAttention(_Attention):
    """For `Inkling2SlidingAttention` and `Inkling2LoopSlidingAttention`."""

    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "relative_distance", "conv_mask", "cache",
            "key_hidden_states", "value_hidden_states", "cache_offset", "kwargs",
        )
    }  # fmt: skip

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        relative_distance: Tensor | None,
        conv_mask: Tensor | None = None,
        cache: Any = None,
        key_hidden_states: Tensor | None = None,
        value_hidden_states: Tensor | None = None,
        cache_offset: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        start = self.first_query(hidden_states, cache, later=cache_offset)
        return super().forward(
            hidden_states, attention_mask, relative_distance, conv_mask, cache, key_hidden_states,
            value_hidden_states, cache_offset, query_start=start, **kwargs,
        )  # fmt: skip


class FullAttention(_Attention):
    """For `Inkling2FullAttention` and `Inkling2LoopFullAttention`."""

    signatures = {
        "forward": (
            "self", "hidden_states", "key_hidden_states", "value_hidden_states", "attention_mask",
            "relative_distance", "conv_mask", "cache", "cache_offset", "kwargs",
        )
    }  # fmt: skip

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        key_hidden_states: Tensor,
        value_hidden_states: Tensor,
        attention_mask: Tensor | None,
        relative_distance: Tensor | None,
        conv_mask: Tensor | None = None,
        cache: Any = None,
        cache_offset: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        start = self.first_query(hidden_states, cache, later=cache_offset)
        return super().forward(
            hidden_states, key_hidden_states, value_hidden_states, attention_mask,
            relative_distance, conv_mask, cache, cache_offset, query_start=start, **kwargs,
        )  # fmt: skip


class TextModel(Adapted):
    """For `Inkling2TextModel` and `Inkling2LoopTextModel`: without the distances of all pairs.

    A function of their module makes them from what is embedded; what stands in its place, and stays
    there, makes none from what this forward has embedded.
    """

    together = True
    signatures = {
        "forward": (
            "self", "input_ids", "attention_mask", "position_ids", "cache", "inputs_embeds",
            "use_cache", "kwargs",
        )
    }  # fmt: skip
    embed_tokens: nn.Module

    @classmethod
    def prepare(cls) -> None:
        for name in ("inkling2", "inkling2_loop"):
            module: Any = sys.modules.get(f"transformers.models.{name}.modeling_{name}")
            if module and not hasattr(module.get_relative_distance, _NEEDS_NO_DISTANCES):
                module.get_relative_distance = _none_if_adapted(module.get_relative_distance)

    @takes_cache
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        # As the original: one of the two.
        if (input_ids is None) != (inputs_embeds is None):
            x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
            input_ids, inputs_embeds = None, x.view_as(x)
            setattr(inputs_embeds, _NEEDS_NO_DISTANCES, True)
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            cache=cache, inputs_embeds=inputs_embeds, use_cache=use_cache, **kwargs,
        )  # fmt: skip


def _none_if_adapted(distances: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    """A function of distances that makes none of more queries where an adapted model asks it."""

    @wraps(distances)
    def distances_or_none(inputs_embeds: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        if inputs_embeds.shape[1] > 1 and getattr(inputs_embeds, _NEEDS_NO_DISTANCES, False):
            return None
        return distances(inputs_embeds, *args, **kwargs)

    setattr(distances_or_none, _NEEDS_NO_DISTANCES, True)
    return distances_or_none
