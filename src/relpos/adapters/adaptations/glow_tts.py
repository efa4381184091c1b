"""Glow-TTS's encoder of text (Kim et al. 2020), as VITS's authors, Piper and Coqui have it.

    s_ij = scale * q_i . (k_j + K[j - i]) - p log(1 + |j - i|)
    o_i  = sum_j softmax(s_i)_j * (v_j + V[j - i])

Shaw's keys and values (Shaw et al. 2018) in a window, nothing beyond it: one table of each for all
heads, or one for each head. p is 1 where the bias is "proximal" and 0 elsewhere. The encoders make
a mask of all pairs; here the mask has one row for all queries.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...terms import OffsetTable, Terms
from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from ..heads import split_heads

__all__ = ["Attention", "CoquiAttention", "CoquiEncoder", "Encoder"]


class _Attention(Adapted):
    """A base of both forms, whose attributes have other names.

    The originals keep their last weights in `attn`; these leave it as it was. Where a mask is
    given, they may be local (`local`); without one they are not.
    """

    scheme = "Shaw keys and values"
    signatures = {"forward": ("self", "x", "c", "attn_mask")}
    k_channels: int
    proximal_bias: bool
    conv_q: nn.Module
    conv_k: nn.Module
    conv_v: nn.Module
    conv_o: nn.Module
    emb_rel_k: Any
    emb_rel_v: Any

    @classmethod
    def described(cls, module: Any) -> str:
        return f"{cls.scheme}; its weights are no longer kept in attn"

    def attended(
        self, x: Float[Tensor, "b c i"], c: Float[Tensor, "b c j"], attn_mask: Tensor | None, *,
        reach: int | None, local: int | None, dropout: nn.Module,
    ) -> Float[Tensor, "b o i"]:  # fmt: skip
        """The module's output.

        Args:
            x: of the queries.
            c: of the keys, as many.
            attn_mask: 0 for pairs that are hidden, `(b, 1, i or 1, j)`.
            reach: how far from the query the tables reach, in tokens; None: there are none.
            local: how far keys may be from the query, in tokens, where a mask is given.
            dropout: of weights.
        """
        if x.shape[2] != c.shape[2]:
            return self.original_forward(x, c, attn_mask)
        projected = (self.conv_q(x), self.conv_k(c), self.conv_v(c))
        q, k, v = (split_heads(part.mT, width=self.k_channels) for part in projected)
        window = self.window
        if local is not None and attn_mask is not None:
            left, right = (None, None) if window is None else window
            window = (_least(left, local), _least(right, local))
        output, _ = attend(
            q, k, v, self._terms(q, reach), scale=self.k_channels**-0.5,
            mask=None if attn_mask is None else attn_mask != 0, window=window,
            dropout=drop_probability(dropout),
        )  # fmt: skip
        return self.conv_o(output.flatten(2).mT)

    def _terms(self, q: Tensor, reach: int | None) -> Terms:
        tables: dict[str, Any] = {}
        if reach is not None:
            tables = {
                name: OffsetTable(rows.to(q.dtype), -reach, beyond="zero")
                for name, rows in (("keys", self.emb_rel_k), ("values", self.emb_rel_v))
            }
        if self.proximal_bias:
            farthest = q.shape[2] - 1
            offsets = torch.arange(-farthest, farthest + 1, dtype=torch.float32, device=q.device)
            rows = -offsets.abs().log1p().to(q.dtype)[None]
            tables["bias"] = OffsetTable(rows, -farthest)
        return Terms(**tables)


class Attention(_Attention):
    """For `MultiHeadAttention` of VITS's `attentions`."""

    weights_dropout = "drop"
    n_heads: int
    window_size: int | None
    block_length: int | None
    drop: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.window_size is not None or module.proximal_bias

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        # Without tables it is the decoder's, which is causal.
        return module.window_size is not None

    def forward(self, x: Tensor, c: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return self.attended(
            x, c, attn_mask, reach=self.window_size, local=self.block_length, dropout=self.drop
        )


class CoquiAttention(_Attention):
    """For Coqui's `RelativePositionMultiHeadAttention`."""

    num_heads: int
    rel_attn_window_size: int | None
    input_length: int | None
    dropout: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_attn_window_size is not None or module.proximal_bias

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return module.rel_attn_window_size is not None

    def forward(self, x: Tensor, c: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return self.attended(
            x, c, attn_mask, reach=self.rel_attn_window_size, local=self.input_length,
            dropout=self.dropout,
        )  # fmt: skip


class _Encoder(Adapted):
    """A base of encoders, which hand their attention a mask with one row for all queries."""

    signatures = {"forward": ("self", "x", "x_mask")}
    attn_layers: nn.ModuleList
    norm_layers_1: nn.ModuleList
    ffn_layers: nn.ModuleList
    norm_layers_2: nn.ModuleList

    def encoded(
        self, x: Float[Tensor, "b c i"], x_mask: Float[Tensor, "b 1 i"], *,
        dropout: nn.Module, last: nn.Module | None = None,
    ) -> Float[Tensor, "b o i"]:  # fmt: skip
        """The output at tokens, and 0 elsewhere.

        Args:
            x: of the tokens.
            x_mask: 0 for what is no token.
            dropout: of what each part of a layer gives.
            last: projects beside the last layer's feed-forward, which gives another width.
        """
        layers = zip(
            self.attn_layers, self.norm_layers_1, self.ffn_layers, self.norm_layers_2, strict=True
        )
        x = x * x_mask
        for number, (attention, norm_1, feed_forward, norm_2) in enumerate(layers, 1):
            x = norm_1(x + dropout(attention(x, x, x_mask[:, :, None])))
            y = dropout(feed_forward(x, x_mask))
            if last is not None and number == len(self.attn_layers):
                x = last(x)
            x = norm_2(x + y)
        return x * x_mask


class Encoder(_Encoder):
    """For `Encoder` of VITS's `attentions`."""

    window_size: int | None
    drop: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.window_size is not None

    def forward(self, x: Tensor, x_mask: Tensor) -> Tensor:
        return self.encoded(x, x_mask, dropout=self.drop)


class CoquiEncoder(_Encoder):
    """For Coqui's `RelativePositionTransformer`."""

    rel_attn_window_size: int | None
    dropout: nn.Module

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.rel_attn_window_size is not None

    def forward(self, x: Tensor, x_mask: Tensor) -> Tensor:
        return self.encoded(x, x_mask, dropout=self.dropout, last=getattr(self, "proj", None))


def _least(reach: int | None, other: int) -> int:
    return other if reach is None else min(reach, other)
