"""VITS' text encoder (Kim et al. 2021): Shaw's keys and values in a window, nothing beyond it.

    s_ij = scale * q_i . (k_j + K[j - i]),   o_i = sum_j softmax(s_i)_j * (v_j + V[j - i])

One table of keys and one of values for all heads. The encoder makes a mask of all pairs; here the
mask has one row for all queries.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import project_heads
from ..masks import encoder_mask

__all__ = ["Attention", "Encoder"]


class Attention(Adapted):
    """For `VitsAttention`."""

    scheme = "Shaw keys and values"
    together = True
    signatures = {
        "forward": (
            "self", "hidden_states", "key_value_states", "attention_mask", "output_attentions",
        )
    }  # fmt: skip
    window_size: int
    head_dim: int
    scaling: float
    dropout: float
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    out_proj: nn.Module
    emb_rel_k: nn.Parameter
    emb_rel_v: nn.Parameter

    @classmethod
    def applies(cls, module: Any) -> bool:
        return bool(module.window_size)

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        # The original, too, makes keys and values of the queries' tokens, whatever is given.
        q, k, v = project_heads(
            hidden_states, self.q_proj, self.k_proj, self.v_proj, width=self.head_dim
        )
        keys, values = (
            OffsetTable(rows.to(q.dtype), -self.window_size, beyond="zero")
            for rows in (self.emb_rel_k, self.emb_rel_v)
        )
        output, weights = attend(
            q, k, v, Terms(keys=keys, values=values), mask=attention_mask, scale=self.scaling,
            dropout=self.dropout if self.training else 0.0, window=self.window,
            weights=output_attentions,
        )  # fmt: skip
        return self.out_proj(output.flatten(2)), weights


class Encoder(Adapted):
    """For `VitsEncoder`: its forward with a mask `(b, 1, 1, j)`."""

    together = True
    signatures = {
        "forward": (
            "self", "hidden_states", "padding_mask", "attention_mask", "output_attentions",
            "output_hidden_states", "return_dict",
        )
    }  # fmt: skip

    @classmethod
    def applies(cls, module: Any) -> bool:
        return bool(module.config.window_size)

    def forward(
        self,
        hidden_states: Tensor,
        padding_mask: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        attention_mask = encoder_mask(attention_mask, length=hidden_states.shape[1])
        return super().forward(
            hidden_states, padding_mask, attention_mask, output_attentions, output_hidden_states,
            return_dict,
        )  # fmt: skip
