"""Enformer and Borzoi, which read DNA: Transformer-XL's terms on features of distances.

In place of sinusoids Enformer (Avsec et al. 2021) has exponentials, gamma densities and steps of
the distance, Borzoi (Linder et al. 2025) steps alone, each once more with the sign of the offset;
every layer projects them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..adapted import Adapted
from ..attend import attend
from ..drop_probability import drop_probability
from .transformer_xl import transformer_xl_terms

__all__ = ["Attention", "BorzoiAttention"]


class Attention(Adapted):
    """For `Attention` of enformer-pytorch.

    Features are computed in float64 where the queries are, else in float32, in 16 bits too.
    """

    scheme = "Transformer-XL"
    weights_dropout = "attn_dropout"
    signatures = {"forward": ("self", "x")}
    #: Where the original's function of features is, which `prepare` finds.
    source: ClassVar[str] = "enformer_pytorch.modeling_enformer"
    embed: ClassVar[Callable[..., Tensor]]
    #: Its parameters, as they were when this was written.
    embed_parameters: ClassVar[tuple[str, ...]] = (
        "seq_len", "feature_size", "device", "use_tf_gamma", "dtype",
    )  # fmt: skip
    heads: int
    scale: float
    num_rel_pos_features: int
    use_tf_gamma: Any
    to_q: nn.Module
    to_k: nn.Module
    to_v: nn.Module
    to_out: nn.Module
    to_rel_k: nn.Module
    rel_content_bias: nn.Parameter
    rel_pos_bias: nn.Parameter
    pos_dropout: nn.Module
    attn_dropout: nn.Dropout

    @classmethod
    def prepare(cls) -> None:
        cls.embed = staticmethod(import_module(cls.source).get_positional_embed)

    @classmethod
    def unsupported(cls, module: Any) -> str | None:
        embed = import_module(cls.source).get_positional_embed
        found = tuple(inspect.signature(embed).parameters)
        if found == cls.embed_parameters:
            return None
        return (
            f"get_positional_embed has the parameters {', '.join(found)} here, where "
            f"{', '.join(cls.embed_parameters)} were expected"
        )

    @classmethod
    def takes_window(cls, module: Any) -> bool:
        return True

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for part in (self.to_q(x), self.to_k(x), self.to_v(x))
        )
        features = self.pos_dropout(self.features(q).to(q.dtype))
        u, w = self.rel_content_bias[0, :, 0], self.rel_pos_bias[0, :, 0]
        output, _ = attend(
            q * self.scale + u[:, None], k, v,
            transformer_xl_terms(self.to_rel_k(features), u, w, scale=1.0), scale=1.0,
            dropout=drop_probability(self.attn_dropout), window=self.window,
        )  # fmt: skip
        return self.to_out(output.flatten(2))

    def features(self, q: Tensor) -> Tensor:
        """`(2 i - 1, f)`, of the offsets from `1 - i` on.

        Args:
            q: the queries `(b, h, i, d)`.
        """
        return self.embed(
            q.shape[2], self.num_rel_pos_features, q.device, self.use_tf_gamma,
            torch.float64 if q.dtype == torch.float64 else torch.float32,
        )  # fmt: skip


class BorzoiAttention(Attention):
    """For `Attention` of borzoi-pytorch, which keeps the features of its first call.

    It has those of every length, where the original goes on with the first one's; in float32.
    """

    source = "borzoi_pytorch.pytorch_borzoi_transformer"
    embed_parameters = ("seq_len", "seq_len_train", "feature_size", "device")
    positions: Tensor | None

    def features(self, q: Tensor) -> Tensor:
        kept = self.positions
        if kept is not None and len(kept) == 2 * q.shape[2] - 1 and kept.device == q.device:
            return kept
        # 4096 tokens is what it was trained with.
        return self.embed(q.shape[2], 4096, self.num_rel_pos_features, q.device)
