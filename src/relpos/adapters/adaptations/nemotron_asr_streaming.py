"""Nemotron's streaming encoder (Noroozi et al. 2023): Parakeet's attention in chunks, and a cache.

A frame sees its own chunk and some chunks before it. The original says so with a mask of all pairs;
here it is a range of keys for each query, beside a mask of the padding with one row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad
from transformers import DynamicCache
from transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming import (
    NemotronAsrStreamingEncoderBlock,
    NemotronAsrStreamingEncoderCausalConvPaddingCache,
    NemotronAsrStreamingEncoderModelOutput,
)
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..adapted import Adapted
from ..cache_argument import cache_name, takes_cache
from ..implementation import original_name
from ..masks import narrow_mask
from . import parakeet
from .pieces import subsample_in_pieces

__all__ = ["Encoder", "EncoderAttention", "PositionalEncoding", "Subsampling"]

_CACHE = cache_name(NemotronAsrStreamingEncoderBlock.forward)


class EncoderAttention(parakeet.EncoderAttention):
    """For `NemotronAsrStreamingEncoderAttention`: Parakeet's, which may have keys in a cache."""

    signatures = {
        "forward": (
            "self", "hidden_states", "position_embeddings", "attention_mask", "cache", "kwargs",
        )
    }  # fmt: skip

    @classmethod
    def described(cls, module: Any) -> str:
        words = super().described(module)
        if original_name(module.config._attn_implementation) == "eager":
            words += "; chunks and padding are hidden, where the eager original inverts its mask"
        return words


class PositionalEncoding(Adapted):
    """For `NemotronAsrStreamingEncoderRelPositionalEncoding`: one table for all sequences."""

    signatures = {"forward": ("self", "hidden_states", "cached_frames")}

    def forward(self, hidden_states: Tensor, cached_frames: int | None = None) -> Tensor:
        table = super().forward(hidden_states[:1], cached_frames)
        return table.expand(hidden_states.shape[0], -1, -1)


class Subsampling(Adapted):
    """For `NemotronAsrStreamingEncoderSubsamplingConv2D`: one piece of the audio at a time."""

    signatures = {"forward": ("self", "input_features", "attention_mask", "padding_cache")}
    conv_in: nn.Conv2d
    layers: nn.ModuleList

    @classmethod
    def applies(cls, module: Any) -> bool:
        # Wider kernels look further back.
        return (module.conv_in.kernel_size, module.conv_in.stride) == ((3, 3), (2, 2))

    def forward(
        self,
        input_features: Tensor,
        attention_mask: Tensor | None = None,
        padding_cache: Any = None,
    ) -> Tensor:
        if padding_cache is not None:
            # A stream is in pieces already.
            return super().forward(input_features, attention_mask, padding_cache)
        return subsample_in_pieces(
            super().forward, input_features, attention_mask,
            factor=2 ** (1 + len(self.layers)), frames_before=2,
        )  # fmt: skip


class Encoder(Adapted):
    """For `NemotronAsrStreamingEncoder`: its forward with ranges of keys."""

    signatures = {
        "forward": (
            "self", "input_features", "attention_mask", "position_ids", "cache",
            "output_attention_mask", "use_cache", "padding_cache", "num_lookahead_tokens", "kwargs",
        ),
        "_get_output_attention_mask": ("self", "attention_mask", "target_length"),
        "_resolve_attn_context": ("self", "num_lookahead_tokens"),
    }  # fmt: skip
    config: Any
    subsampling: nn.Module
    encode_positions: nn.Module
    layers: nn.ModuleList
    input_scale: float
    dropout: float
    dropout_positions: float
    layerdrop: float
    _get_output_attention_mask: Any
    _resolve_attn_context: Any

    @takes_cache
    def forward(
        self,
        input_features: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        output_attention_mask: bool = True,
        use_cache: bool | None = None,
        padding_cache: Any = None,
        num_lookahead_tokens: int | None = None,
        **kwargs: Any,
    ) -> Any:
        kwargs |= {
            "attention_mask": attention_mask, _CACHE: cache,
            "output_attention_mask": output_attention_mask, "use_cache": use_cache,
            "padding_cache": padding_cache, "num_lookahead_tokens": num_lookahead_tokens,
        }  # fmt: skip
        # Dropped positions are another table for each sequence of the batch, and a static cache
        # has its queries elsewhere than at the end.
        growing = cache is None or isinstance(cache, DynamicCache)
        adapted = all(isinstance(layer.self_attn, EncoderAttention) for layer in self.layers)
        if not (growing and adapted) or (self.training and self.dropout_positions):
            return super().forward(input_features, position_ids=position_ids, **kwargs)
        return self._forward(input_features, **kwargs)

    @takes_cache
    @merge_with_config_defaults
    @capture_outputs
    def _forward(
        self,
        input_features: Tensor,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        output_attention_mask: bool = True,
        use_cache: bool | None = None,
        padding_cache: Any = None,
        num_lookahead_tokens: int | None = None,
        **kwargs: Any,
    ) -> NemotronAsrStreamingEncoderModelOutput:
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if use_cache and padding_cache is None:
            padding_cache = NemotronAsrStreamingEncoderCausalConvPaddingCache()
        x = self.subsampling(input_features, attention_mask, padding_cache=padding_cache)
        x = x * self.input_scale
        start, keys, first_key = 0, x.shape[1], 0
        if cache is not None:
            start = cache.get_seq_length()
            keys, first_key = cache.get_mask_sizes(x.shape[1], 0)
        tokens = mask = None
        if attention_mask is not None:
            tokens = self._get_output_attention_mask(attention_mask, target_length=x.shape[1])
            mask = narrow_mask(tokens, length=keys, start=first_key)
        left, right = self._resolve_attn_context(num_lookahead_tokens)
        ranges = _chunk_ranges(start, x, left=left, right=right) - first_key
        ranges = ranges.clamp(0, keys)
        all_masked = _without_keys(mask, ranges)
        positions = self.encode_positions(x, cached_frames=keys - x.shape[1])
        x = dropout(x, p=self.dropout, training=self.training)
        by_name = {_CACHE: cache}
        for layer in self.layers:
            if self.training and self.layerdrop > 0.0 and torch.rand([]) < self.layerdrop:
                continue
            x = layer(
                x, attention_mask=mask, all_masked_rows=all_masked, position_embeddings=positions,
                padding_cache=padding_cache, use_cache=use_cache, key_ranges=ranges, **by_name,
                **kwargs,
            )  # fmt: skip
        return NemotronAsrStreamingEncoderModelOutput(
            last_hidden_state=x,
            attention_mask=tokens.int() if tokens is not None and output_attention_mask else None,
            padding_cache=padding_cache,
            **by_name,
        )


def _chunk_ranges(start: int, x: Tensor, *, left: int, right: int) -> Tensor:
    """`(1, i, 2)`: the keys that the queries from `start` on see, by their positions in the stream.

    `left` and `right` are the frames that the last and the first of a chunk see beside it; a chunk
    sees whole chunks.
    """
    size = right + 1
    chunk = torch.arange(start, start + x.shape[1], device=x.device) // size
    before = left // size if left >= 0 else start + x.shape[1]
    return torch.stack([(chunk - before) * size, (chunk + 1) * size], -1)[None]


def _without_keys(mask: Tensor | None, ranges: Tensor) -> Tensor | None:
    """`(b, 1, i)`: the queries that see padding alone; None where there is none."""
    if mask is None:
        return None
    counts = pad(mask[:, 0, 0].long().cumsum(-1), (1, 0))
    first, end = ranges[0].unbind(-1)
    return (counts[:, end] == counts[:, first])[:, None]
