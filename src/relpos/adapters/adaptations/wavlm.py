"""WavLM (Chen et al. 2022): T5's bias, which a gate of each query turns up or down.

    s_ij = scale * q_i . k_j + g_i B[j - i]

The first layer makes the bias and hands it to the others, `(b * h, i, j)` in the original and here
`(h, r)`, a row for each offset up to where the last bucket begins. Weights that are returned are
the mean over the heads, as the original's are. `relpos.positions.GatedBias` explains the gate.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ...traced_sizes import plain_size
from ..adapted import Adapted
from ..attend import attend
from ..heads import project_heads, split_heads
from ..weights_wanted import weights_wanted
from .buckets import NEVER_END, rows_of_buckets, t5_buckets_end

__all__ = ["Attention", "gated_terms", "gates"]


class Attention(Adapted):
    """For `WavLMAttention`; given a `position_bias` of all pairs, it runs as before."""

    scheme = "gated T5 bias"
    together = True
    signatures = {
        "forward": (
            "self", "hidden_states", "attention_mask", "position_bias", "index", "kwargs",
        ),
        "_relative_positions_bucket": ("self", "relative_positions"),
    }  # fmt: skip
    _relative_positions_bucket: Any
    num_heads: int
    head_dim: int
    scaling: float
    dropout: float
    max_distance: int
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    out_proj: nn.Module
    gru_rel_pos_const: nn.Parameter
    gru_rel_pos_linear: nn.Module
    rel_attn_embed: Any

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        ends = t5_buckets_end(module.num_buckets, module.max_distance, bidirectional=True)
        return None if ends else NEVER_END

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        index: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        if position_bias is None:
            position_bias = self._table(hidden_states)
        elif position_bias.ndim != 2:
            return self.original_forward(
                hidden_states, attention_mask, position_bias, index, **kwargs
            )
        q, k, v = project_heads(
            hidden_states, self.q_proj, self.k_proj, self.v_proj, width=self.head_dim
        )
        terms = gated_terms(position_bias, self._gate(hidden_states), scale=self.scaling)
        output, weights = attend(
            q, k, v, terms,
            mask=None if attention_mask is None else attention_mask.eq(1)[:, None, None, :],
            scale=self.scaling, dropout=self.dropout if self.training else 0.0, window=self.window,
            weights=weights_wanted(kwargs),
        )  # fmt: skip
        if weights is not None:
            weights = weights.mean(1, keepdim=True).expand_as(weights)
        return self.out_proj(output.flatten(2)), weights, position_bias

    def _gate(self, hidden_states: Tensor) -> Tensor:
        linear, constant = self.gru_rel_pos_linear, self.gru_rel_pos_const
        return gates(hidden_states, linear, constant, width=self.head_dim)

    def _table(self, hidden_states: Tensor) -> Tensor:
        """The bias of the offsets `-reach..reach`, `(h, r)`: all that these tokens have."""
        reach = min(self.max_distance, hidden_states.shape[1])
        offsets = torch.arange(-reach, reach + 1, device=hidden_states.device)
        return rows_of_buckets(self.rel_attn_embed, self._relative_positions_bucket(offsets))


def gated_terms(
    bias: Float[Tensor, "h r"], gates: Float[Tensor, "b h i 1"] | None, *, scale: float
) -> Terms:
    """A bias of each offset, turned up or down by each query.

    Args:
        bias: with offset 0 in the middle.
        gates: None: it is as it is for all queries.
        scale: of the products, which multiplies keys' terms but not this bias.
    """
    first = -(plain_size(bias, 1) // 2)
    if gates is None:
        return Terms(bias=OffsetTable(bias, first))
    return Terms(keys=OffsetTable(bias[..., None] / scale, first), q_rel=gates)


def gates(
    hidden_states: Float[Tensor, "b i e"], linear: nn.Module, constant: Tensor, *, width: int
) -> Float[Tensor, "b h i 1"]:
    """What each query turns its bias up or down by.

    Args:
        hidden_states: of the queries.
        linear: gives eight numbers for each head.
        constant: `(1, h, 1, 1)`.
        width: d, of one head.
    """
    numbers = linear(split_heads(hidden_states, width=width)).unflatten(-1, (2, 4)).sum(-1)
    update, reset = numbers.sigmoid().chunk(2, dim=-1)
    return update * (reset * constant - 1.0) + 2.0
