"""What the attentions of timm have in common."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ...adapted import Adapted
from ...drop_probability import drop_probability
from ..image_bias import ImageBias, attend_to_image
from .biases import OffsetBias

__all__ = ["BiasedAttention", "TimmAttention", "dropout_of"]


def dropout_of(attention: Any) -> float:
    """The probability that an attention of timm drops a weight now.

    Args:
        attention: with `attn_drop`; by `fused_attn` it says whether it attends by SDPA.
    """
    by_sdpa = getattr(attention, "fused_attn", False)
    return drop_probability(attention.attn_drop, sdpa_of=attention if by_sdpa else None)


class TimmAttention(Adapted):
    """A base of adaptations: one projection of queries, keys and values, two dropouts."""

    weights_dropout = "attn_drop"
    num_heads: int
    qkv: nn.Module
    attn_drop: nn.Dropout
    proj: nn.Module
    proj_drop: nn.Module

    def projected(self, output: Tensor) -> Tensor:
        """What the module gives for what its heads give."""
        return self.proj_drop(self.proj(output))


class BiasedAttention(TimmAttention):
    """A base of what has a module `rel_pos` of biases, or none."""

    scheme = "joint bias of two axes"
    parts = {"rel_pos": OffsetBias}
    scale: float
    rel_pos: nn.Module | None

    def attend(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b h i d"],
        v: Float[Tensor, "b h i d"],
        bias: ImageBias,
    ) -> Float[Tensor, "b i hd"]:
        """The output of all heads, side by side.

        Args:
            q: queries.
            k: keys.
            v: values.
            bias: that of `rel_pos`, most often.
        """
        output, _ = attend_to_image(
            q, k, v, bias, scale=self.scale, dropout=dropout_of(self), weights=False
        )
        return output.flatten(2)
