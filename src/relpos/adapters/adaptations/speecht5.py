"""SpeechT5's encoder (Ao et al. 2022): Shaw's keys, one table for all heads, clamped beyond.

    s_ij = scale * q_i . (k_j + K[j - i])

The encoder looks an `L x L x d` tensor up and makes a mask of all pairs; here it hands its layers
the table's rows and a mask with one row for all queries. The decoder has no relative positions and
stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ...traced_sizes import plain_size
from ..adapted import Adapted
from ..attend import attend
from ..cache_argument import takes_cache
from ..heads import project_heads
from ..masks import encoder_mask

__all__ = ["Attention", "Encoder", "RelativePositionalEncoding"]


class Attention(Adapted):
    """For `SpeechT5Attention` in the encoder; given keys of all pairs, it runs as before."""

    scheme = "Shaw keys"
    together = True
    signatures = {
        "forward": (
            "self", "hidden_states", "key_value_states", "cache", "attention_mask",
            "position_bias", "output_attentions", "kwargs",
        )
    }  # fmt: skip
    is_decoder: bool
    head_dim: int
    scaling: float
    dropout: float
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    out_proj: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return not module.is_decoder

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        across = key_value_states is not None or cache is not None
        if across or position_bias is None or position_bias.ndim != 2:
            return self.original_forward(
                hidden_states, key_value_states, cache, attention_mask, position_bias,
                output_attentions, **kwargs,
            )  # fmt: skip
        q, k, v = project_heads(
            hidden_states, self.q_proj, self.k_proj, self.v_proj, width=self.head_dim
        )
        rows = position_bias.to(q.dtype)[None]
        output, weights = attend(
            q, k, v, Terms(keys=OffsetTable(rows, 1 - plain_size(rows, 1) // 2)),
            mask=attention_mask, scale=self.scaling,
            dropout=self.dropout if self.training else 0.0, window=self.window,
            weights=output_attentions,
        )  # fmt: skip
        return self.out_proj(output.flatten(2)), weights


class RelativePositionalEncoding(Adapted):
    """For `SpeechT5RelativePositionalEncoding`: a row for each offset in place of each pair."""

    together = True
    signatures = {"forward": ("self", "hidden_states")}
    max_length: int
    pe_k: nn.Module

    def forward(self, hidden_states: Tensor) -> Tensor:
        """K of the offsets `1 - reach..reach`, `(r, d)`: all that these tokens have."""
        reach = min(self.max_length, hidden_states.shape[1])
        # The original counts from the key to the query.
        offsets = torch.arange(1 - reach, reach + 1, device=hidden_states.device)
        return self.pe_k(self.max_length - offsets)


class Encoder(Adapted):
    """For `SpeechT5Encoder`: its forward with a mask `(b, 1, 1, j)`."""

    together = True
    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "output_attentions", "output_hidden_states",
            "return_dict", "kwargs",
        )
    }  # fmt: skip

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        attention_mask = encoder_mask(attention_mask, length=hidden_states.shape[1])
        return super().forward(
            hidden_states, attention_mask, output_attentions, output_hidden_states, return_dict,
            **kwargs,
        )  # fmt: skip
