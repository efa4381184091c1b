"""Gemma 4's audio encoder: as Gemma 3n's, with one mask for all layers.

The original makes a mask of all pairs and cuts it into blocks of queries beside all keys that they
may see; here it has one row for all queries, beside a window. Queries that are padding, and see
padding alone, give zeros, where the original gives them uniform weights; nothing reads them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus
from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModelOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import project_heads
from ..masks import key_padding
from ..weights_wanted import weights_wanted

__all__ = ["AudioAttention", "AudioModel"]


class AudioAttention(Adapted):
    """For `Gemma4AudioAttention`, whose weights are those of the blocks and the original's."""

    scheme = "projected sinusoids, local"
    signatures = {"forward": ("self", "hidden_states", "position_embeddings", "attention_mask")}
    num_heads: int
    head_dim: int
    chunk_size: int
    context_size: int
    max_past_horizon: int
    max_future_horizon: int
    attention_logits_soft_cap: float
    q_scale: float
    k_scale: float
    per_dim_scale: nn.Parameter
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    post: nn.Module
    relative_k_proj: nn.Module

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        if module.max_past_horizon < 1:
            return "attention_context_left must be at least 2, or no frame sees itself"
        return None

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if attention_mask is None or attention_mask.ndim != 4:  # not of `AudioModel`
            return super().forward(hidden_states, position_embeddings, attention_mask)
        if weights_wanted({}):
            hidden = self._hidden_in_blocks(attention_mask)
            return super().forward(hidden_states, position_embeddings, hidden)
        q, k, v = (
            heads.float()
            for heads in project_heads(
                hidden_states, self.q_proj, self.k_proj, self.v_proj, width=self.head_dim
            )
        )
        rows = self.relative_k_proj(position_embeddings).view(-1, self.num_heads, self.head_dim)
        table = OffsetTable(rows.transpose(0, 1).to(q.dtype), -self.max_past_horizon, beyond="zero")
        output, _ = attend(
            q * self.q_scale * softplus(self.per_dim_scale), k * self.k_scale, v,
            Terms(keys=table), mask=attention_mask, scale=1.0, window=self._window(),
            softcap=self.attention_logits_soft_cap,
        )  # fmt: skip
        return self.post(output.flatten(2).to(hidden_states.dtype)), None

    def _window(self) -> tuple[int, int]:
        """The offsets `-left..right` of transformers' sliding window, whose ends are open."""
        return self.max_past_horizon - 1, max(self.max_future_horizon - 1, 0)

    def _hidden_in_blocks(self, mask: Tensor) -> Tensor:
        """`(b, 1, blocks, i, j)`, True for what a block's queries do not see of its keys."""
        left, right = self._window()
        margin = (self.max_past_horizon, self.max_future_horizon + self.chunk_size - 1)
        tokens = pad(mask[:, 0, 0], margin).unfold(1, self.context_size, self.chunk_size)
        query, key, block = (
            torch.arange(size, device=mask.device)
            for size in (self.chunk_size, self.context_size, tokens.shape[1])
        )
        offset = key - query[:, None] - self.max_past_horizon
        seen = (offset >= -left) & (offset <= right) & tokens[:, :, None]
        # The last block may have room for more queries than there are.
        is_query = block[:, None] * self.chunk_size + query < mask.shape[-1]
        return ~(seen & is_query[..., None])[:, None]


class AudioModel(Adapted):
    """For `Gemma4AudioModel`: its forward with a mask `(b, 1, 1, j)`."""

    signatures = {"forward": ("self", "input_features", "attention_mask", "kwargs")}
    config: Any
    subsample_conv_projection: nn.Module
    rel_pos_enc: nn.Module
    layers: nn.ModuleList
    output_proj: nn.Module

    def forward(
        self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        if not all(isinstance(layer.self_attn, AudioAttention) for layer in self.layers):
            return super().forward(input_features, attention_mask, **kwargs)
        return self._forward(input_features, attention_mask, **kwargs)

    @merge_with_config_defaults
    @capture_outputs
    def _forward(
        self, input_features: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Gemma4AudioModelOutput:
        x, tokens = self.subsample_conv_projection(input_features, attention_mask)
        positions = self.rel_pos_enc(x)
        mask = key_padding(x.new_ones(x.shape[:2]) if tokens is None else tokens)
        for layer in self.layers[: self.config.num_hidden_layers]:
            x = layer(x, attention_mask=mask, position_embeddings=positions, **kwargs)
        return Gemma4AudioModelOutput(last_hidden_state=self.output_proj(x), attention_mask=tokens)
