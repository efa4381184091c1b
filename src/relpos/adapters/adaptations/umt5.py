"""UMT5 (Chung et al. 2023): T5's bias, one of its own in every layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import EncoderDecoderCache

from ..attend import attend
from ..cache_argument import takes_cache
from ..heads import split_heads
from ..implementation import is_adapted_name
from ..weights_wanted import weights_wanted
from . import t5

__all__ = ["Attention"]


class Attention(t5.Attention):
    """For `UMT5Attention`: self-attention, and across, without the zeros that stand for a bias."""

    signatures = {
        "forward": (
            "self", "hidden_states", "encoder_hidden_states", "cache", "attention_mask",
            "kwargs",
        ),
        "compute_bias": ("self", "query_length", "key_length", "device", "past_seen_tokens"),
        "_relative_position_bucket": ("self", "relative_position"),
    }  # fmt: skip
    dropout: float
    scaling: float
    key_value_proj_dim: int
    q: nn.Module
    k: nn.Module
    v: nn.Module
    o: nn.Module

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        if encoder_hidden_states is not None:
            k, v = self._keys_and_values(encoder_hidden_states, cache)
            output, weights = attend(
                self._heads(self.q(hidden_states)), k, v, mask=attention_mask, scale=self.scaling,
                dropout=self.dropout if self.training else 0.0, weights=weights_wanted(kwargs),
                elsewhere=self.attend_elsewhere,
            )  # fmt: skip
            return self.o(output.flatten(2)), weights
        if not is_adapted_name(self.config._attn_implementation):
            # Another implementation was chosen since, which knows no tables.
            return self.original_forward(hidden_states, None, cache, attention_mask, **kwargs)
        kwargs |= self._query_start(hidden_states, cache)
        original: Any = super(t5.Attention, self)
        return original.forward(hidden_states, None, cache, attention_mask, **kwargs)

    def _buckets(self, offsets: Tensor) -> Tensor:
        return self._relative_position_bucket(offsets)

    def _heads(self, x: Tensor) -> Tensor:
        return split_heads(x, width=self.key_value_proj_dim)

    def _keys_and_values(self, states: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoder's output, from the cache where it has them."""
        both = isinstance(cache, EncoderDecoderCache)
        across: Any = cache.cross_attention_cache if both else cache
        if both and cache.is_updated.get(self.layer_idx):
            layer = across.layers[self.layer_idx]
            return layer.keys, layer.values
        k, v = self._heads(self.k(states)), self._heads(self.v(states))
        if across is not None:
            k, v = across.update(k, v, self.layer_idx)
        if both:
            cache.is_updated[self.layer_idx] = True
        return k, v
