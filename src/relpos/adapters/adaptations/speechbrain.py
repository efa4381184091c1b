"""SpeechBrain's Conformers and Branchformers: Transformer-XL's positions (Dai et al. 2019)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import split_qkv
from .transformer_xl import transformer_xl_terms

__all__ = ["Attention"]


class Attention(Adapted):
    """For `RelPosMHAXL`, which gives weights unless it is told not to; this, where it is told to.

    It runs as before on queries, keys and values that are not one tensor, on a table for each
    sequence of the batch, and with masks of integers.
    """

    scheme = "Transformer-XL"
    signatures = {
        "forward": (
            "self", "query", "key", "value", "pos_embs", "key_padding_mask", "attn_mask",
            "return_attn_weights",
        )
    }  # fmt: skip
    weights_dropout = "dropout_att"
    num_heads: int
    head_dim: int
    scale: float
    in_proj_weight: Any
    vbias: bool | None
    value_bias_weight: Any
    linear_pos: nn.Module
    pos_bias_u: nn.Parameter
    pos_bias_v: nn.Parameter
    dropout_att: nn.Dropout
    out_proj: nn.Module

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        return None if module.vdim == module.embed_dim else "it runs with vdim=None alone"

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return not module.mask_pos_future

    @classmethod
    def described(cls, module: Any) -> str:
        return f"{cls.scheme}; its weights are None unless they are asked for"

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pos_embs: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        return_attn_weights: bool | None = None,
    ) -> Any:
        alone = query is key and key is value and pos_embs.shape[:2] == (1, 2 * key.shape[1] - 1)
        masks = [mask for mask in (key_padding_mask, attn_mask) if mask is not None]
        if not alone or any(not (m.is_floating_point() or m.dtype == torch.bool) for m in masks):
            return self.original_forward(
                query, key, value, pos_embs, key_padding_mask, attn_mask,
                return_attn_weights is not False,
            )  # fmt: skip
        q, k, v = split_qkv(linear(query, self.in_proj_weight), heads=self.num_heads, by_head=True)
        if self.vbias is not None:
            v = v + self.value_bias_weight.view(self.num_heads, 1, -1)
        # Their numbers lie as `(h, d)`, whatever their shape says.
        u, w = (
            bias.view(self.num_heads, self.head_dim) for bias in (self.pos_bias_u, self.pos_bias_v)
        )
        output, weights = attend(
            q + u[:, None], k, v,
            transformer_xl_terms(self.linear_pos(pos_embs[0]), u, w, scale=self.scale),
            mask=self._mask(key_padding_mask, attn_mask), scale=self.scale,
            dropout=drop_probability(self.dropout_att), window=self.window,
            weights=return_attn_weights is True,
        )  # fmt: skip
        output = self.out_proj(output.flatten(2))
        return output if return_attn_weights is False else (output, weights)

    def _mask(self, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """One mask of both, True for what takes part, or what is added.

        Args:
            padding: `(b, j)`, True for padding.
            mask: `(i, j)`, `(b h, i, j)` or `(b, h, i, j)`; True for what is hidden, or what is
                added.
        """
        keys = None if padding is None else ~padding.bool()[:, None, None]
        if mask is None:
            return keys
        heads = 1 if mask.ndim == 2 else self.num_heads
        mask = mask.reshape(-1, heads, *mask.shape[-2:])
        if mask.dtype == torch.bool:
            return ~mask if keys is None else ~mask & keys
        return mask if keys is None else mask.masked_fill(~keys, -torch.inf)
