"""fairseq2's modules of attention with relative positions: Shaw et al. 2018 and Dai et al. 2019.

    s_ij = scale * q_i . (k_j + K[j - i])                     ShawRelativePositionSDPA
    o_i  = sum_j softmax(s_i)_j * (v_j + V[j - i])
    s_ij = scale * ((q_i + u) . k_j + (q_i + v) . R[j - i])   RelativePositionSDPA

The first one's rows are clamped beyond its reach, and values have rows if it is told so. The
originals build `i x j x d` rows of keys, and of values, and masks of all pairs.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..heads import split_heads

__all__ = ["RelativePositionAttention", "ShawAttention"]


class _Attention(Adapted):
    """A base of both, which take and give heads behind the tokens.

    Masks may be none or causal, in a window too. With another one (chunks, ALiBi), and with padding
    where there are more keys than queries, they run as before.
    """

    weights_dropout = ""
    signatures = {
        "forward": ("self", "q", "q_layout", "k", "k_layout", "v", "bias_cache", "needs_weights"),
    }
    bias: Any

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return _name(module.bias) == "IdentityBias"

    def forward(
        self, q: Float[Tensor, "b i h d"], q_layout: Any, k: Float[Tensor, "b j h d"],
        k_layout: Any, v: Float[Tensor, "b j h d"], bias_cache: Any, *,
        needs_weights: bool = False,
    ) -> tuple[Float[Tensor, "b i h d"], Float[Tensor, "b h i j"] | None]:  # fmt: skip
        padded, packed = (
            getattr(q_layout, name) or getattr(k_layout, name) for name in ("padded", "packed")
        )
        known = _name(self.bias) in ("IdentityBias", "CausalAttentionBias")
        if not known or packed or not self.takes(q, k) or (padded and q_layout is not k_layout):
            return self.original_forward(
                q, q_layout, k, k_layout, v, bias_cache, needs_weights=needs_weights
            )
        window = self.window
        causal = _name(self.bias) == "CausalAttentionBias"
        reach = self.bias.attn_window_len if causal else None
        if reach is not None and reach < q.shape[1]:
            window = (reach - 1, 0)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = None
        if padded:
            places = torch.arange(k.shape[2], device=k.device)
            mask = (places < k_layout.seq_lens_pt[:, None])[:, None, None]
        content, terms = self.terms(q, k)
        return attend(
            content, k, v, terms, mask=mask, causal=causal, scale=q.shape[-1] ** -0.5,
            window=window, weights=needs_weights,
        )  # fmt: skip

    def takes(self, q: Float[Tensor, "b i h d"], k: Float[Tensor, "b j h d"]) -> bool:
        """Whether the rows are those of so many queries and keys."""
        return q.shape[1] <= k.shape[1]

    def terms(
        self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b h j d"]
    ) -> tuple[Float[Tensor, "b h i d"], Terms]:
        """Queries as the keys multiply them, and the tables."""
        raise NotImplementedError


class ShawAttention(_Attention):
    """For `ShawRelativePositionSDPA`."""

    scheme = "Shaw keys, or Shaw keys and values"
    max_lhs_rel_pos: int
    max_rhs_rel_pos: int
    rel_k_embed: nn.Module
    rel_v_embed: nn.Module | None

    @classmethod
    def described(cls, module: Any) -> str:
        return "Shaw keys" if module.rel_v_embed is None else "Shaw keys and values"

    def terms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Terms]:
        rows = torch.arange(self.max_lhs_rel_pos + 1 + self.max_rhs_rel_pos, device=q.device)
        keys, values = (
            None if embed is None
            else OffsetTable(embed(rows)[None].to(q.dtype), -self.max_lhs_rel_pos)
            for embed in (self.rel_k_embed, self.rel_v_embed)
        )  # fmt: skip
        return q, Terms(keys=keys, values=values)


class RelativePositionAttention(_Attention):
    """For `RelativePositionSDPA`; with more keys than queries it runs as before, and fails."""

    scheme = "Transformer-XL"
    pos_encoding: nn.Module
    r_proj: nn.Module
    u_bias: nn.Parameter
    v_bias: nn.Parameter

    def takes(self, q: Tensor, k: Tensor) -> bool:
        return q.shape[1] == k.shape[1]

    def terms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Terms]:
        rows = split_heads(self.r_proj(self.pos_encoding(k)), width=k.shape[-1])
        table = OffsetTable(rows.to(q.dtype), 1 - k.shape[2])
        content, relative = (q + bias[:, None] for bias in (self.u_bias, self.v_bias))
        return content, Terms(keys=table, q_rel=relative)


def _name(bias: Any) -> str:
    return type(bias).__name__
