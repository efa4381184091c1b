"""The second Inkling (Thinking Machines 2026): the first one's bias, and a sink for each query.

The sink is one more score with a value of zero. The module that mixes the profiles makes the
coefficients, too, and the model hands it the distances of all pairs, which are left out here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.masking_utils import (
    create_causal_mask,
    create_recurrent_attention_mask,
    create_sliding_window_causal_mask,
)
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.models.inkling2 import modeling_inkling2
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..adapted import Adapted
from ..cache_argument import takes_cache
from .inkling import InklingAttention

__all__ = ["FullAttention", "RelativePositionBias", "SlidingAttention", "TextModel"]


class RelativePositionBias(Adapted):
    """For `Inkling2RelativePositionBias`: of more than one query the coefficients alone.

    They are `(1, b, h, i, d_rel)`. Called with nothing, it gives the profiles, as Inkling's does.
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


class _Attention(InklingAttention):
    relative_position_bias: nn.Module

    def profiles(self) -> Tensor:
        return self.relative_position_bias()


class SlidingAttention(_Attention):
    """For `Inkling2SlidingAttention`."""

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
    """For `Inkling2FullAttention`."""

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
    """For `Inkling2TextModel`: its forward without the distances of all pairs."""

    together = True
    signatures = {
        "forward": (
            "self", "input_ids", "attention_mask", "position_ids", "cache", "inputs_embeds",
            "use_cache", "kwargs",
        )
    }  # fmt: skip
    config: Any
    embed_tokens: nn.Module
    layers: nn.ModuleList
    final_input: nn.Module
    norm: nn.Module

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> MoeModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Inkling2TextModel: must have either input_ids or inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            start = 0 if cache is None else cache.get_seq_length()
            position_ids = (torch.arange(x.shape[1], device=x.device) + start)[None]
        masks = attention_mask if isinstance(attention_mask, dict) else self._masks(
            inputs_embeds=x, attention_mask=attention_mask, cache=cache, position_ids=position_ids,
        )  # fmt: skip
        distances = {kind: self._distances(x, cache, kind) for kind in masks}
        blocks = x.new_zeros(*x.shape[:-1], 0, x.shape[-1])
        dtype = x.dtype
        for layer in self.layers:
            kind = layer.attention_type
            y = layer(
                x, blocks, attention_mask=masks[kind], relative_distance=distances[kind],
                conv_mask=masks["linear_attention"], cache=cache, position_ids=position_ids,
                **kwargs,
            )  # fmt: skip
            if layer.is_block_boundary:
                blocks = torch.cat([blocks.to(x.device), x.unsqueeze(-2)], dim=-2)
            x = y
        x = self.norm(self.final_input(blocks, x)[0]).to(dtype)
        return MoeModelOutputWithPast(last_hidden_state=x, cache=cache)

    def _masks(self, **given: Any) -> dict[str, Any]:
        return {
            "full_attention": create_causal_mask(config=self.config, **given),
            "sliding_attention": create_sliding_window_causal_mask(config=self.config, **given),
            "linear_attention": create_recurrent_attention_mask(config=self.config, **given),
        }

    def _distances(self, x: Tensor, cache: Any, kind: str) -> Tensor | None:
        """Those of a single query to its keys, `(1, j)`."""
        if x.shape[1] > 1 or kind == "linear_attention":
            return None
        sliding = kind == "sliding_attention"
        return modeling_inkling2.get_relative_distance(x, cache, is_sliding=sliding)
