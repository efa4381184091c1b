"""Gemma 3n's audio encoder (the Universal Speech Model, Zhang et al. 2023): local, with a softcap.

    s_ij = 50 tanh(q_i . (k_j + W R[j - i]) / 50)       for the offsets -left..right alone

R are sinusoids. The original cuts the audio into blocks, each beside all keys that it may see; here
it is a window.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import project_heads
from ..masks import key_padding

__all__ = ["AudioAttention", "AudioRelativePositionEmbedding"]


class AudioAttention(Adapted):
    """For `Gemma3nAudioAttention`, which has neither weights to return nor dropout."""

    scheme = "projected sinusoids, local"
    together = True
    signatures = {"forward": ("self", "hidden_states", "mask")}
    num_heads: int
    head_dim: int
    max_past_horizon: int
    max_future_horizon: int
    attention_logits_soft_cap: float
    q_scale: Tensor
    per_dim_scale: nn.Parameter
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    relative_position_embedding: Any

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        q, k, v = project_heads(
            hidden_states, self.q_proj, self.k_proj, self.v_proj, width=self.head_dim
        )
        output, _ = attend(
            q * self.q_scale * softplus(self.per_dim_scale), k, v, self._terms(q),
            mask=key_padding(~mask), scale=1.0, softcap=self.attention_logits_soft_cap,
            window=(self.max_past_horizon, self.max_future_horizon),
        )  # fmt: skip
        return output

    def _terms(self, q: Tensor) -> Terms:
        """A row for each offset of the window; the sinusoids are of how far behind a key is."""
        left, right = self.max_past_horizon, self.max_future_horizon
        embedding = self.relative_position_embedding
        behind = torch.arange(left, -right - 1, -1, device=q.device)
        rows = embedding.pos_proj(embedding._get_timing_signal_1d_pos(behind[None], q.dtype))[0]
        rows = rows.unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)
        return Terms(keys=OffsetTable(rows, -left))


class AudioRelativePositionEmbedding(Adapted):
    """For `Gemma3nAudioRelativePositionEmbedding`: its sinusoids are those of `AudioAttention`."""

    together = True
    signatures = {"_get_timing_signal_1d_pos": ("self", "position", "dtype")}
