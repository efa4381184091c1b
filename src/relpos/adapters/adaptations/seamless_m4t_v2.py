"""SeamlessM4T v2's speech encoder (Seamless Communication et al. 2023): Shaw's keys, in chunks.

A frame sees its own chunk and some chunks before it (section 3.1.1). The original says so with a
mask of all pairs, even for the one chunk that most audio is; here each module takes ranges of keys
from the same configuration, and the mask is that of the padding. The original's eager attention
adds its boolean mask to the scores, so that neither chunks nor padding are hidden; here they are,
as under its `sdpa`. Frames of padding that see no token give zeros, the original's uniform weights.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...ranges import chunk_ranges
from ..adapted import Adapted
from ..implementation import original_name
from . import wav2vec2_bert

__all__ = ["Encoder", "SelfAttention"]


class SelfAttention(wav2vec2_bert.SelfAttention):
    """For `SeamlessM4Tv2ConformerSelfAttention`; that of adapter layers has no positions."""

    scheme = "Shaw keys"
    signatures = {"forward": ("self", "hidden_states", "attention_mask", "kwargs")}
    config: Any

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.position_embeddings_type == "relative_key"

    @classmethod
    def described(cls, module: Any) -> str:
        if original_name(module.config._attn_implementation) == "eager":
            return f"{cls.scheme}; chunks and padding are hidden, as the eager original fails to"
        return cls.scheme

    def _key_ranges(self, hidden_states: Tensor) -> Tensor | None:
        length, size = hidden_states.shape[1], self.config.speech_encoder_chunk_size
        if size is None or length <= size:
            return None
        left = self.config.speech_encoder_left_chunk_num
        return chunk_ranges(
            length, size, left_chunks=left if left >= 0 else None, device=hidden_states.device
        )


class Encoder(Adapted):
    """For `SeamlessM4Tv2ConformerEncoder`: its mask is that of the padding."""

    signatures = {
        "_apply_chunk_attention": ("self", "attention_mask", "hidden_states"),
    }
    layers: nn.ModuleList

    def _apply_chunk_attention(
        self, attention_mask: Tensor | None, hidden_states: Tensor
    ) -> Tensor | None:
        """The padding, `(b, j)`: chunks are ranges of keys in the modules that attend."""
        if all(isinstance(layer.self_attn, SelfAttention) for layer in self.layers):
            return attention_mask
        original: Any = super()
        return original._apply_chunk_attention(attention_mask, hidden_states)
