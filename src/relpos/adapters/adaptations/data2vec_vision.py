"""Data2Vec's vision (Baevski et al. 2022): BEiT's biases, added to the scores by the attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..adapted import Adapted
from ..heads import project_heads
from .image_bias import ImageBias, attend_to_image

__all__ = ["Encoder", "SdpaSelfAttention", "SelfAttention"]


class SelfAttention(Adapted):
    """For `Data2VecVisionSelfAttention`; given a bias of all pairs, it runs as before."""

    scheme = "joint bias of two axes"
    signatures = {
        "forward": (
            "self", "hidden_states", "output_attentions", "relative_position_bias",
            "interpolate_pos_encoding", "resolution",
        )
    }  # fmt: skip
    together = True
    config: Any
    attention_head_size: int
    has_relative_position_bias: bool
    relative_position_bias: Any
    query: nn.Module
    key: nn.Module
    value: nn.Module
    dropout: nn.Dropout

    @classmethod
    def applies(cls, module: Any) -> bool:
        shared = module.config.use_shared_relative_position_bias
        return module.has_relative_position_bias or shared

    def forward(
        self,
        hidden_states: Tensor,
        output_attentions: bool = False,
        relative_position_bias: Any = None,
        interpolate_pos_encoding: bool = False,
        resolution: Any = None,
    ) -> tuple[Tensor] | tuple[Tensor, Tensor | None]:
        bias = relative_position_bias
        if self.has_relative_position_bias:
            shape = tuple(pixels // self.config.patch_size for pixels in resolution)
            own = self.relative_position_bias(
                shape, interpolate_pos_encoding, dim_size=hidden_states.shape[1]
            )
            bias = own if bias is None else own + bias
        if not isinstance(bias, ImageBias):
            return self.original_forward(
                hidden_states, output_attentions, relative_position_bias,
                interpolate_pos_encoding, resolution,
            )  # fmt: skip
        width = self.attention_head_size
        q, k, v = project_heads(hidden_states, self.query, self.key, self.value, width=width)
        output, weights = attend_to_image(
            q, k, v, bias, scale=width**-0.5, dropout=self._probability() if self.training else 0.0,
            weights=output_attentions,
        )  # fmt: skip
        output = output.flatten(2)
        return (output,) if weights is None else (output, weights)

    def _probability(self) -> float:
        """The probability that a weight is dropped."""
        return self.dropout.p


class SdpaSelfAttention(SelfAttention):
    """For `Data2VecVisionSdpaSelfAttention`, which gives weights here too when asked for them."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        output, *weights = super().forward(*args, **kwargs)
        return output, weights[0] if weights else None

    def _probability(self) -> float:
        return self.config.attention_probs_dropout_prob


class Encoder(Adapted):
    """For `Data2VecVisionEncoder`, which runs as before: it hands on the bias of all layers."""

    signatures = {
        "forward": (
            "self", "hidden_states", "output_attentions", "output_hidden_states",
            "interpolate_pos_encoding", "resolution", "return_dict",
        )
    }  # fmt: skip
    together = True

    @classmethod
    def applies(cls, module: Any) -> bool:
        return module.has_relative_position_bias
